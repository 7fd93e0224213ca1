"""What a challenger that looks on costs the requests that are served, side by side in one go.

::

    python benchmarks/shadow.py [--quick] [--json FILE]

Routers that are alike but for shadow mode (both have an outcome log, the shipped policy serves, and in
one of them looks on too) serve the same streamed chat (20 events, 10 ms apart, `router_backend.py`) to a
few open streams, in turns, on 8 replicas. TTFT is measured by the client; the backend answers at once,
so nearly all of it is the router's.

- `shadow.ttft_p99_ratio`, `shadow.ttft_p50_ratio`: with a challenger over without, of the requests of
  all rounds; the interval is a 95 % bootstrap over rounds, in which both take turns;
- `shadow.ttft_p99_added_ms`: the same, as a difference;
- `shadow.event_delay_p99_ratio`: of later events, from the backend to the client;
- `shadow.cpu_us`: processor time per request that comes with it, the thread that scores included;
- `shadow.scored_share`: requests that were scored while the rounds went on.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from own_router import serve_command
from router_load import Seen, load
from router_processes import Server, free_ports, serving

from steersman.agents.learned.shipped import DIRECTORY

REPLICAS = 8
STREAMS = 6
HERE = Path(__file__).parent

Row = dict[str, Any]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Turn:
    """One router's, of one round."""

    ttft_s: Values
    delay_s: Values
    cpu_us: float
    """Per request."""


@dataclass(frozen=True)
class Round:
    """Both turns."""

    without: Turn
    looking: Turn


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rounds, duration_s = (4, 2.0) if options.quick else (20, 2.5)
    with tempfile.TemporaryDirectory() as scratch:
        rows = figures(*measure(Path(scratch), rounds, duration_s))
    for row in rows:
        print(f"{row['name']:<32}{row['value']:>10.4g} {row['unit']:<8} {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(scratch: Path, rounds: int, duration_s: float) -> tuple[list[Round], float]:
    """The rounds, and the share of the requests that were scored meanwhile."""
    *ports, without, looking = free_ports(REPLICAS + 2)
    with ExitStack() as stack:
        backend = [sys.executable, str(HERE / "router_backend.py"), *map(str, ports)]
        serving(stack, "backend", backend, ports[0], scratch)
        routers = [
            serving(stack, name, router(scratch, name, port, ports), port, scratch)
            for name, port in (("without", without), ("looking", looking))
        ]
        for server in routers:  # first requests are slow
            uvloop.run(load(server.port, STREAMS, 2.0))
        before = scored(routers[1])
        order, done, sent = random.Random(0), [], 0
        for index in range(rounds):
            turns = {}
            for server in order.sample(routers, 2):
                seen, turns[server.name] = turn(server, duration_s)
                sent += seen.completed if server.name == "looking" else 0
            done.append(Round(turns["without"], turns["looking"]))
            print(f"round {index + 1} of {rounds} is done", file=sys.stderr)
        return done, (scored(routers[1]) - before) / max(sent, 1)


def turn(server: Server, duration_s: float) -> tuple[Seen, Turn]:
    """One load; failures are none of its kind."""
    before_s = server.cpu_s
    seen = uvloop.run(load(server.port, STREAMS, duration_s))
    if seen.failed:
        raise RuntimeError(f"{seen.failed} requests failed: {seen.first}")
    cpu_us = 1e6 * (server.cpu_s - before_s) / max(seen.completed, 1)
    return seen, Turn(np.array(seen.ttft_s), np.array(seen.delay_s), cpu_us)


def router(scratch: Path, name: str, port: int, backends: list[int]) -> list[str]:
    """Its configuration, and the command to start it with."""
    return serve_command(
        scratch / f"{name}.yaml",
        port,
        backends,
        outcome_log={"directory": str(scratch / f"log-{name}")},
        shadow={"enabled": name == "looking", "challengers": [str(DIRECTORY)]},
    )


def scored(server: Server) -> float:
    """Decisions that the challenger has scored."""
    return server.metric("steersman_shadow_scored_total")


def figures(rounds: list[Round], share: float) -> list[Row]:
    """One row for each."""
    requests = sum(len(each.looking.ttft_s) for each in rounds)

    def compare(what: Callable[[Turn], Values], level: float, *, added: bool = False) -> list[float]:
        pairs = [(what(each.without), what(each.looking)) for each in rounds]
        draws = np.random.default_rng(0).integers(len(pairs), size=(1_000, len(pairs)))
        found = []
        for chosen in (np.arange(len(pairs)), *draws):
            sides = [np.concatenate([pairs[i][side] for i in chosen.tolist()]) for side in (0, 1)]
            low, high = (float(np.quantile(values, level)) for values in sides)
            found.append(1000.0 * (high - low) if added else high / low)
        return [found[0], *np.quantile(found[1:], (0.025, 0.975)).tolist()]

    cpu_us = [each.looking.cpu_us - each.without.cpu_us for each in rounds]
    note = f"{requests} requests with a challenger"
    return [
        row("shadow.ttft_p99_ratio", compare(lambda t: t.ttft_s, 0.99), "ratio", note),
        row("shadow.ttft_p50_ratio", compare(lambda t: t.ttft_s, 0.5), "ratio"),
        row("shadow.ttft_p99_added_ms", compare(lambda t: t.ttft_s, 0.99, added=True), "ms"),
        row("shadow.event_delay_p99_ratio", compare(lambda t: t.delay_s, 0.99), "ratio"),
        row("shadow.cpu_us", [statistics.median(cpu_us), min(cpu_us), max(cpu_us)], "us", "per request"),
        row("shadow.scored_share", [share, share, share], "share"),
    ]


def row(name: str, found: list[float], unit: str, note: str = "") -> Row:
    """The value, and between which it lies."""
    value, lo, hi = found
    said = f"{lo:.4g} to {hi:.4g}" + (f"; {note}" if note else "")
    return {"name": name, "value": value, "lo": lo, "hi": hi, "unit": unit, "note": said}


if __name__ == "__main__":
    main()
