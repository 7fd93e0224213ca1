"""What a second worker brings: the same load through one router of one process and one of several.

::

    python benchmarks/workers.py [--quick] [--workers N] [--json FILE]

The streamed chat of `router.py` at 256 open streams, closed-loop, with power of two choices; the two
routers take turns, in a new order each round, and a figure is the median over rounds.

- `req_per_s.workers_1`, `req_per_s.workers_N`, `req_per_s.ratio`: answers per second;
- `cpu_us.workers_1`, `cpu_us.workers_N`, `cpu_us.ratio`: processor time of all the router's processes
  per request: what sharing the state costs;
- `req_per_s.possible_ratio`: what the ratio could be on this machine. The load and the replicas run on
  the same cores: with N workers no more than `cores / (processor time of all three per request)` are
  answered. With at least N + 2 cores the ratio itself is the figure; with fewer, see how near it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import router_peers
import uvloop
import yaml
from router_load import load
from router_processes import Server, free_ports, serving

STREAMS = 256
BACKENDS = 2
PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b")
HERE = Path(__file__).parent

Row = dict[str, Any]


@dataclass
class Run:
    """One load."""

    per_s: float
    cpu_us: float
    """Of the router, per request."""
    others_us: float
    """Of the load and the replicas, per request."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--workers", type=int, default=2, help="of the router with several")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rounds, duration_s = (4, 2.0) if options.quick else (10, 4.0)
    counts = (1, options.workers)
    with tempfile.TemporaryDirectory() as scratch, started(Path(scratch), counts) as (backend, routers):
        runs = measure(backend, dict(zip(counts, routers, strict=True)), rounds, duration_s)
    rows = figures(runs, len(os.sched_getaffinity(0)))
    for row in rows:
        print(f"{row['name']:<32}{row['value']:>10.4g} {row['unit']:<6} {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


@contextmanager
def started(scratch: Path, counts: Sequence[int]) -> Iterator[tuple[Server, list[Server]]]:
    """The replicas, and a router of each number of workers, serving."""
    *ports, _ = free_ports(BACKENDS + 1)
    script = [sys.executable, str(HERE / "router_backend.py"), *map(str, ports)]
    with ExitStack() as stack:
        backend = serving(stack, "backend", script, ports[0], scratch)
        routers = []
        for count in counts:
            (port,) = free_ports(1)
            command = router(scratch, count, port, ports)
            routers.append(serving(stack, f"workers_{count}", command, port, scratch))
        time.sleep(1.0)  # all workers of it, not only the first
        yield backend, routers


def router(scratch: Path, workers: int, port: int, backends: Sequence[int]) -> list[str]:
    """Its configuration, and the command to start it with."""
    settings: dict[str, Any] = {
        "port": port,
        "workers": workers,
        "policy": {"name": "p2c"},
        "backends": [
            {"url": url, "profile": profile}
            for url, profile in zip(router_peers.urls(backends), PROFILES, strict=True)
        ],
    }
    path = scratch / f"workers_{workers}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [sys.executable, "-m", "steersman", "serve", "--config", str(path)]


def measure(
    backend: Server, routers: dict[int, Server], rounds: int, duration_s: float
) -> dict[int, list[Run]]:
    """Each number of workers under the same load, in turns."""
    runs: dict[int, list[Run]] = {count: [] for count in routers}
    for server in routers.values():  # nobody's first requests count
        uvloop.run(load(server.port, 16, 0.5))
    order = random.Random(0)
    for index in range(rounds):
        turn = list(routers)
        order.shuffle(turn)
        for count in turn:
            runs[count].append(one(backend, routers[count], duration_s))
        print(f"round {index + 1} of {rounds} is done", file=sys.stderr)
    return runs


def one(backend: Server, server: Server, duration_s: float) -> Run:
    """One load.

    Raises:
        RuntimeError: a request failed.
    """
    router_s, others_s = server.cpu_s, backend.cpu_s + time.process_time()
    seen = uvloop.run(load(server.port, STREAMS, duration_s))
    if seen.failed:
        raise RuntimeError(f"{server.name}: {seen.failed} requests failed: {seen.first}")
    router_s = server.cpu_s - router_s
    others_s = backend.cpu_s + time.process_time() - others_s
    return Run(seen.per_s, 1e6 * router_s / seen.completed, 1e6 * others_s / seen.completed)


def figures(runs: dict[int, list[Run]], cores: int) -> list[Row]:
    """One row for each."""
    one, several = runs.values()
    rows = []
    for kind, unit in (("per_s", "1/s"), ("cpu_us", "us")):
        name = "req_per_s" if kind == "per_s" else kind
        found = {count: [getattr(run, kind) for run in measured] for count, measured in runs.items()}
        for count, values in found.items():
            rows.append(row(f"{name}.workers_{count}", values, unit, f"at {STREAMS} streams"))
        ratios = [more / alone for alone, more in zip(*found.values(), strict=True)]
        rows.append(row(f"{name}.ratio", ratios, "", "several over one, round by round"))
    possible = [
        1e6 * cores / (more.cpu_us + more.others_us) / alone.per_s
        for alone, more in zip(one, several, strict=True)
    ]
    note = f"{cores} cores, which carry the load and the replicas as well"
    return [*rows, row("req_per_s.possible_ratio", possible, "", note)]


def row(name: str, values: Sequence[float], unit: str, note: str) -> Row:
    """The median over rounds, and between which values they lay."""
    return {
        "name": name,
        "value": statistics.median(values),
        "lo": min(values),
        "hi": max(values),
        "unit": unit,
        "note": note,
    }


if __name__ == "__main__":
    main()
