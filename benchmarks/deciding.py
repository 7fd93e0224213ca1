"""How long a router takes to decide, measured in a process that has loaded what a router loads.

::

    python benchmarks/deciding.py DIRECTORY CALLS REPLICAS [REPLICAS ...]

Prints a JSON object of microseconds; `benchmarks/decision.py` makes the directory (a `World` and a
bundle) and runs this. A `Traffic` is a router's own parts (`serving/parts.py`: fleet, predictors, policy
behind its guard) without the network: requests come at the world's rate, are prepared, routed and
dispatched as the proxy does, and end when the router itself predicted they would; every replica is
scraped each 200 ms.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from scoring import timed

import steersman.serving.router as router_module
from steersman.agents.learned.shipped import shipped_graph
from steersman.env.engine_metrics import EngineMetrics
from steersman.predictors import ledger as L
from steersman.predictors.blocks import BLOCK_TOKENS
from steersman.predictors.onnx_model import session_options
from steersman.serving.collector import settle
from steersman.serving.compilation import By
from steersman.serving.config import RouterSettings
from steersman.serving.flight import Flight
from steersman.serving.headers import NO_HINTS
from steersman.serving.models import load_models
from steersman.serving.parts import build_parts
from steersman.serving.router import Route
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.readers import load_trace
from steersman.traces.schema import Observation, Request
from steersman.traces.settings import parse_settings
from steersman.traces.trace import Trace
from steersman.traces.writers import write_trace

MODEL = "m"
SCRAPE_S = 0.2
BUNDLE, TRACE, WORLD = "bundle", "traffic.parquet", "world.json"
POLICIES = ("learned", "marginal-cost", "predicted-latency", "p2c")
NEVER_LATCHED = {"latch_trips": 1_000_000, "latch_window": 1_000_000}
"""A latched guard does not ask the network: that would be another measurement."""
WARM_UP = 30
"""Requests per replica before anything counts: about as many as are there at a time."""
HEAVY = {"torch", "numba", "lightgbm", "sklearn", "pandas", "scipy", "onnx", "mlflow", "gymnasium"}
NUMPY = "numpy."
"""In the names of figures of the router that calculates features so, and not by machine code."""
TURN = 20
"""Decisions of one router before it is the other's turn."""
Microseconds = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Replicas and what comes to them."""

    profiles: list[str]
    """Hardware profiles of the replicas, over and over."""
    rps_per_replica: float
    trace: Trace
    """Of which arrivals are drawn."""

    def save(self, directory: Path) -> None:
        """For another process."""
        write_trace(directory / TRACE, self.trace.requests())
        known = {"profiles": self.profiles, "rps_per_replica": self.rps_per_replica}
        (directory / WORLD).write_text(json.dumps(known))

    @staticmethod
    def load(directory: Path) -> World:
        """The inverse of `save`."""
        known = json.loads((directory / WORLD).read_text())
        return World(trace=load_trace(str(directory / TRACE)), **known)

    def arrivals(self, replicas: int) -> Iterator[tuple[Request, int]]:
        """Requests without end, with their answers' lengths; prefixes hashed as the router hashes."""
        rate_rps = self.rps_per_replica * replicas
        span_s = 2_000.0 / rate_rps
        parts = max(self.trace.block_tokens // BLOCK_TOKENS, 1)
        for seed in count():
            trace = block_bootstrap(self.trace, rate_rps=rate_rps, duration_s=span_s, seed=seed)
            for request in trace.requests():
                hashes = tuple(block ^ part for block in request.block_hashes for part in range(parts))
                known = replace(
                    request,
                    arrival_s=seed * span_s + request.arrival_s,
                    model=MODEL,
                    output_tokens=None,
                    block_hashes=hashes,
                    block_tokens=BLOCK_TOKENS,
                )
                yield known, max(request.output_tokens or 1, 1)


def main() -> None:
    """Measure and print."""
    directory, calls = Path(sys.argv[1]), int(sys.argv[2])
    world, bundle = World.load(directory), directory / BUNDLE
    figures: dict[str, float] = {}
    for replicas in map(int, sys.argv[3:]):
        for policy in POLICIES:
            label = "" if policy == "learned" else f"{policy}."
            traffics = {label: Traffic(world, replicas, policy, bundle)}
            if policy == "learned" and traffics[label].is_compiled:
                traffics[NUMPY] = Traffic(world, replicas, policy, bundle, compiled=False)
            settle()  # as `steersman serve` does
            for traffic in traffics.values():
                traffic.play(WARM_UP * replicas)
            take_turns(list(traffics.values()), calls)
            for name, traffic in traffics.items():
                figures |= decision_figures(traffic, f"{{}}.{name}{replicas}")
            if policy != "learned":
                continue
            for name, traffic in traffics.items():
                figures[f"fallback_share.{name}{replicas}"] = traffic.fallback_share
                figures |= stage_figures(traffic, calls, f"{name}{replicas}")
            figures |= plain_figures(traffic.routes(1)[0].observation, calls, replicas)
    if loaded := HEAVY & set(sys.modules):
        raise SystemExit(f"{', '.join(sorted(loaded))} must not be loaded here")
    print(json.dumps(figures))


class Traffic:
    """A pool under load, in time of its own.

    Args:
        replicas: how many.
        policy: who decides; `learned` is the one that ships with Steersman.
        bundle: directory of the predictors; None: the router's fallbacks.
        compiled: machine code calculates features, if it was compiled before.
    """

    def __init__(
        self,
        world: World,
        replicas: int,
        policy: str,
        bundle: Path | None,
        *,
        compiled: bool = True,
    ) -> None:
        self.now_s = 0.0
        profiles = world.profiles
        backends = [
            {"url": f"http://r{i}", "models": [MODEL], "profile": profiles[i % len(profiles)]}
            for i in range(replicas)
        ]
        settings = {
            "backends": backends,
            "policy": {"name": policy, "compiled": "auto" if compiled else "never"},
            "health": {"interval_s": 300.0},
            "guard": NEVER_LATCHED,
        }
        self.parts = build_parts(
            parse_settings(settings, RouterSettings, source="benchmark"), lambda: self.now_s
        )
        asyncio.run(self.parts.compilation.step(0.0))
        if bundle is not None:
            self.parts.models.serve(load_models(bundle))
        self._requests = world.arrivals(replicas)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        for i in range(replicas):
            self._scrape(i, SCRAPE_S * i / replicas)
        self.after_us: list[float] = []
        """What is done once the request is on its way: latencies predicted, and expected."""
        self.prepared_us: list[float] = []
        self.wall_us: list[float] = []
        self.cpu_us: list[float] = []

    @property
    def is_compiled(self) -> bool:
        """Whether machine code calculates features."""
        return self.parts.compilation.by is By.MACHINE_CODE

    def forget(self) -> None:
        """All times."""
        self.wall_us, self.cpu_us, self.prepared_us, self.after_us = [], [], [], []

    def play(self, requests: int) -> None:
        """So many decisions, timed; earlier times are forgotten."""
        self.forget()
        for _ in range(requests):
            self.step()

    def routes(self, requests: int) -> list[Route]:
        """What so many decisions led to."""
        return [self.step() for _ in range(requests)]

    def step(self) -> Route:
        """The next request: everything due before it, then its decision."""
        request, output_tokens = next(self._requests)
        while self._events and self._events[0][0] <= request.arrival_s:
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()
        self.now_s = request.arrival_s
        router, pool = self.parts.router, self.parts.fleet.pools[MODEL]
        began_cpu, began = time.thread_time_ns(), time.perf_counter_ns()
        prepared = router.prepare(request, pool, NO_HINTS)
        between = time.perf_counter_ns()
        route = router.choose(prepared)
        ended, ended_cpu = time.perf_counter_ns(), time.thread_time_ns()
        self.prepared_us.append((between - began) / 1e3)
        self.wall_us.append((ended - began) / 1e3)
        self.cpu_us.append((ended_cpu - began_cpu) / 1e3)
        assert route is not None
        self._dispatch(route, output_tokens)
        return route

    @property
    def fallback_share(self) -> float:
        """Of all decisions, those that the guard took from the learned policy."""
        guard = self.parts.models.guard(MODEL)
        return 0.0 if guard is None else sum(guard.fallbacks.values()) / max(guard.decisions, 1)

    def _dispatch(self, route: Route, output_tokens: int) -> None:
        flight = Flight(route, self.parts.fleet)
        began = time.perf_counter_ns()
        flight.depart()
        self.after_us.append((time.perf_counter_ns() - began) / 1e3)
        first_s = self.now_s + max(route.ttft_s, 1e-3)
        end_s = first_s + float(route.predicted[2]) * (output_tokens - 1)

        def first_token() -> None:
            flight.first_token(self.now_s)

        def finish() -> None:
            flight.finish(self.now_s, output_tokens)
            self.parts.recorder._past.end(route.prepared.request, output_tokens, None)

        self._later(first_s, first_token)
        self._later(end_s, finish)

    def _scrape(self, index: int, pause_s: float = SCRAPE_S) -> None:
        fleet = self.parts.fleet
        row, replica = fleet.state[index], fleet.replicas[index]
        waiting = max(row[L.INFLIGHT] - row[L.MAX_NUM_SEQS], 0.0)
        tokens = row[L.PROMPT_TOKENS] + 0.5 * row[L.OUTPUT_TOKENS]
        metrics = EngineMetrics(
            dialect="vllm",
            running=float(row[L.INFLIGHT] - waiting),
            waiting=float(waiting),
            kv_usage=float(min(tokens / row[L.KV_CAPACITY_TOKENS], 1.0)),
        )
        fleet.on_scrape(replica, metrics, self.now_s)
        self._later(self.now_s + pause_s, partial(self._scrape, index))

    def _later(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))


def take_turns(traffics: list[Traffic], calls: int) -> None:
    """So many decisions of each, timed, a few at a time: what else the machine does, it does to all."""
    for traffic in traffics:
        traffic.forget()
    for _ in range(max(calls // TURN, 1)):
        for traffic in traffics:
            traffic.routes(TURN)


def decision_figures(traffic: Traffic, name: str) -> dict[str, float]:
    """Of the decisions that were timed: p50 and p99 of `prepare` and `choose` together, by the clock and
    of the processor alone; and the median of what follows once the request is on its way."""
    found = {}
    for figure, times in (("decision", traffic.wall_us), ("decision_cpu", traffic.cpu_us)):
        for level in (50, 99):
            found[name.format(f"{figure}_p{level}_us")] = float(np.percentile(times, level))
    found[name.format("afterwards_p50_us")] = float(np.median(traffic.after_us))
    return found


def stage_figures(traffic: Traffic, calls: int, label: str) -> dict[str, float]:
    """Median microseconds of each stage, in the middle of real decisions."""
    models, fleet, past = traffic.parts.models, traffic.parts.fleet, traffic.parts.router._past
    policy, guard = models.policy(MODEL), models.guard(MODEL)
    assert guard is not None
    spent: dict[str, dict[int, float]] = {}
    places: list[tuple[Any, str, str]] = [
        (past, "begin", "features"),
        (router_module, "length_features", "features"),
        (router_module, "slo_s", "features"),
        (router_module, "request_features", "features"),
        (router_module, "identity", "features"),
        (models.length, "predict", "length_model"),
        (fleet, "snapshot", "snapshot"),
        (fleet, "match_tokens", "match"),
        (fleet, "avoided", "avoided"),
        (router_module, "observe", "observe"),
        (policy, "decide", "policy_guard_and_exploration"),
        (guard, "decide", "policy_and_guard"),
        (guard._ensemble, "head_scores", "policy_graph"),
    ]
    with watched(places, spent, lambda: len(traffic.wall_us)):
        traffic.play(calls)
    median = {
        stage: float(np.median([times.get(call, 0.0) for call in range(calls)]))
        for stage, times in spent.items()
    }
    median["exploration"] = median.pop("policy_guard_and_exploration") - median["policy_and_guard"]
    median["guard"] = median.pop("policy_and_guard") - median["policy_graph"]
    total = float(np.median(traffic.wall_us))
    median["rest"] = total - sum(median.values())
    return {f"stage_p50_us.{stage}.{label}": value for stage, value in median.items()}


@contextmanager
def watched(
    places: list[tuple[Any, str, str]], spent: dict[str, dict[int, float]], decision: Callable[[], int]
) -> Iterator[None]:
    """Sum up what these functions take, by stage and decision; undone at the end."""
    originals = [(place, name, getattr(place, name)) for place, name, _ in places]

    def timing(function: Callable[..., Any], into: dict[int, float]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.perf_counter_ns()
            answer = function(*given, **named)
            took = (time.perf_counter_ns() - began) / 1e3
            into[decision()] = into.get(decision(), 0.0) + took
            return answer

        return call

    for (place, name, function), (_, _, stage) in zip(originals, places, strict=True):
        setattr(place, name, timing(function, spent.setdefault(stage, {})))
    try:
        yield
    finally:
        for place, name, function in originals:
            if isinstance(place, type(router_module)):
                setattr(place, name, function)
            else:
                delattr(place, name)


def plain_figures(seen: Observation, calls: int, replicas: int) -> dict[str, float]:
    """The policy's graph by onnxruntime alone, on inputs that are ready."""
    session = ort.InferenceSession(
        shipped_graph(), session_options(), providers=["CPUExecutionProvider"]
    )
    inputs = {
        "replicas": seen.replicas[None],
        "request": seen.request[None],
        "pool": seen.pool[None],
        "mask": seen.mask[None],
    }
    found = timed("onnxruntime", lambda: session.run(None, inputs), calls)
    return {f"{name}.{replicas}": value for name, value in found.items()}


if __name__ == "__main__":
    main()
