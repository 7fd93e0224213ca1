"""The router's account of a replica is balanced, whatever happens to its requests."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.predictors.latency import AnalyticLatency
from steersman.serving.flight import Flight
from steersman.serving.headers import NO_HINTS
from steersman.serving.parts import Parts, build_parts
from steersman.serving.router import Route
from steersman.traces.schema import Request
from tests.serving.harness import settings_for

ACCOUNT = slice(L.INFLIGHT, L.TOKENS_SINCE_SCRAPE + 1)


def make_parts(replicas: int = 2) -> Parts:
    listed = [{"url": f"http://r{i}", "models": ["m"]} for i in range(replicas)]
    return build_parts(settings_for([], backends=listed))


def route(parts: Parts, *, stream: bool = True, blocks: tuple[int, ...] = ()) -> Route:
    request = Request("r", parts.clock(), 100, model="m", stream=stream, block_hashes=blocks)
    made = parts.router.choose(parts.router.prepare(request, parts.fleet.pools["m"], NO_HINTS))
    assert made is not None
    return made


def fly(made: Route, parts: Parts) -> Flight:
    """Dispatched, and on its way."""
    flight = Flight(made, parts.fleet)
    flight.depart()
    return flight


def test_a_stream_teaches_means_and_bias() -> None:
    parts = make_parts(1)
    flight = Flight(route(parts), parts.fleet)
    row = parts.fleet.state[0]
    assert row[L.INFLIGHT] == row[L.INFLIGHT_PREFILL] == 1.0
    assert row[L.PREFILL_TOKENS] == 100.0
    start_s = flight.route.dispatched_s
    flight.first_token(start_s + 0.5)
    flight.first_token(start_s + 0.9)
    assert row[L.INFLIGHT_PREFILL] == 0.0
    assert row[L.MEAN_TTFT_S] == pytest.approx(0.5)
    assert row[L.LOG_BIAS_TTFT] != 0.0
    flight.finish(start_s + 2.5, 21)
    flight.abort(21)
    assert row[L.MEAN_TPOT_S] == pytest.approx(0.1)
    assert row[L.MEAN_E2E_S] == pytest.approx(2.5)
    assert row[L.INFLIGHT] == row[L.OUTPUT_TOKENS] == row[L.PROMPT_TOKENS] == 0.0
    assert row[L.TOKENS_SINCE_SCRAPE] == -21.0, "what it produced has left the replica's memory too"


async def test_without_streaming_the_end_of_its_prefill_is_believed() -> None:
    parts = make_parts(1)
    flight = fly(route(parts, stream=False), parts)
    row = parts.fleet.state[0]
    assert row[L.INFLIGHT_PREFILL] == 1.0
    await asyncio.sleep(flight.route.ttft_s + 0.05)
    assert row[L.INFLIGHT_PREFILL] == 0.0
    assert row[L.MEAN_TTFT_S] == row[L.LOG_BIAS_TTFT] == 0.0, "a belief teaches nothing"
    flight.finish(flight.route.dispatched_s + 3.0, 20)
    assert row[L.MEAN_E2E_S] == pytest.approx(3.0)
    assert row[L.MEAN_TPOT_S] == row[L.LOG_BIAS_TPOT] == 0.0
    assert row[L.INFLIGHT] == 0.0


def test_latencies_are_predicted_once_it_is_on_its_way() -> None:
    parts = make_parts(1)
    asked: list[float] = []

    class Counting(AnalyticLatency):
        def predict(
            self, replicas: NDArray[np.float32], request: NDArray[np.float32]
        ) -> NDArray[np.float64]:
            asked.append(parts.clock())
            return super().predict(replicas, request)

    made = replace(route(parts), latency=Counting())
    flight = Flight(made, parts.fleet)
    assert not asked
    flight.depart()
    flight.depart()
    assert len(asked) == 1
    assert len(parts.models.widths("m")) == 1
    flight.first_token(made.dispatched_s + 0.1)
    flight.finish(made.dispatched_s + 1.0, 5)
    assert made.predicted is made.predicted
    assert len(asked) == 1


def test_what_ends_before_it_is_on_its_way_expects_nothing() -> None:
    parts = make_parts(1)
    flight = Flight(route(parts), parts.fleet)
    flight.abort(0)
    flight.depart()
    assert len(parts.models.widths("m")) == 0
    assert parts.fleet.state[0, L.INFLIGHT] == 0.0


async def test_an_answer_faster_than_believed_is_balanced_too() -> None:
    parts = make_parts(1)
    flight = fly(route(parts, stream=False), parts)
    flight.finish(flight.route.dispatched_s + 0.001, 5)
    await asyncio.sleep(flight.route.ttft_s + 0.05)
    assert parts.fleet.state[0, L.INFLIGHT_PREFILL] == 0.0


def test_a_dispatch_tells_the_prefix_index() -> None:
    parts = make_parts(2)
    flight = Flight(route(parts, blocks=(1, 2, 3)), parts.fleet)
    pool = parts.fleet.pools["m"]
    matched = parts.fleet.match_tokens(pool, (1, 2, 3, 4))
    assert matched[flight.route.decision.choice] == 3 * parts.fleet.block_tokens
    again = route(parts, blocks=(1, 2, 3))
    assert again.observation.replicas.shape[0] == 2


def test_a_stream_teaches_how_wide_p90_has_to_be() -> None:
    parts = make_parts(1)
    widths = parts.models.widths("m")
    made = route(parts)
    assert made.predicted == pytest.approx(made.modelled)
    flight = fly(made, parts)
    flight.first_token(made.dispatched_s + 0.5 * made.predicted[0])
    assert widths.ttft.log < 0.0
    flight.finish(made.dispatched_s + 1_000.0, 10)
    assert widths.tpot.log > 0.0
    served = route(parts)
    assert served.predicted[0] <= served.predicted[1] < served.modelled[1]
    assert served.predicted[3] > served.modelled[3]


def test_what_does_not_end_well_or_is_cold_teaches_no_width() -> None:
    parts = make_parts(1)
    widths = parts.models.widths("m")
    cancelled = fly(route(parts), parts)
    cancelled.abort(0)
    empty = fly(route(parts), parts)
    empty.finish(parts.clock() + 5.0, 0)
    broken = fly(route(parts), parts)
    widths.apply(parts.clock() + 1e4, broken.route.modelled)
    assert widths.ttft.log > 0.0
    broken.abort(0)
    parts.fleet.state[0, L.COLD_TTFT] = 1.0
    cold = fly(route(parts), parts)
    cold.first_token(parts.clock() + 50.0)
    cold.finish(parts.clock() + 500.0, 10)
    widths.apply(parts.clock() + 1e4, cold.route.modelled)
    assert (widths.ttft.log, widths.tpot.log, len(widths)) == (0.0, 0.0, 0)


async def test_without_streaming_nothing_is_known_of_the_width() -> None:
    parts = make_parts(1)
    flight = fly(route(parts, stream=False), parts)
    flight.finish(flight.route.dispatched_s + 100.0, 20)
    widths = parts.models.widths("m")
    assert (widths.ttft.log, widths.tpot.log, len(widths)) == (0.0, 0.0, 0)


@given(st.lists(st.tuples(st.sampled_from("nfea"), st.integers(0, 5)), max_size=40))
def test_the_account_is_balanced(events: list[tuple[str, int]]) -> None:
    parts = make_parts(3)
    flying: list[Flight] = []
    now_s, produced = 0.0, 0
    for kind, which in events:
        now_s += 0.1
        if kind == "n" or not flying:
            flying.append(Flight(route(parts), parts.fleet))
            continue
        flight = flying[which % len(flying)]
        if kind == "f":
            flight.first_token(flight.route.dispatched_s + now_s)
            continue
        flying.remove(flight)
        produced += which
        if kind == "e":
            flight.finish(flight.route.dispatched_s + now_s, which)
        flight.abort(which)
        flight.abort(which)
    for flight in flying:
        flight.abort(0)
    state = parts.fleet.state
    np.testing.assert_allclose(state[:, L.INFLIGHT : L.SINCE_SCRAPE + 1], 0.0, atol=1e-6)
    assert state[:, L.TOKENS_SINCE_SCRAPE].sum() == pytest.approx(-produced)
    assert all(math.isfinite(value) for value in state[:, ACCOUNT].ravel())
