"""What the outcome log costs the router, side by side on one machine in one go.

::

    python benchmarks/outcome_log.py [--quick] [--json FILE]

Two routers serve the same streamed chat (20 events, 10 ms apart, `router_backend.py`) to 24 open
streams each, at the same time, so that whatever else the machine does slows both; 8 replicas, the
policy that ships, guarded. In turns one of them has its log and the other has not
(`outcome_log_router.py`), so that what tells one process from the other cancels out too. Then a log is
compacted, as the router has it done by a process of the lowest priority.

- `log.cpu_fraction`: processor time per request with the log, over that without, less 1 (the writing
  thread included, compaction not): of the sums over rounds, in which
  each router has a second with and one without;
- `log.cpu_us`: the difference, the median over rounds; `log.request_cpu_us`: of a request without;
- `log.compaction_cpu_us`: processor time of compaction, per record, without the second or so that its
  process takes to start, per segment; `log.compaction_cpu_fraction`:
  over that of a request;
- `log.framed_bytes`, `log.compacted_bytes`: per record on disk;
- `log.dropped`: records that were not written (0, or the rest means nothing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from own_router import serve_command
from router_load import load
from router_processes import Server, free_ports, serving

from steersman.traces.outcome_compaction import Compacted, compact

REPLICAS = 8
STREAMS = 24
"""Of each router."""
ROUND_S = 1.0
HERE = Path(__file__).parent

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rounds = 15 if options.quick else 60
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "one"
        rounds_us, dropped = measure(Path(scratch), rounds)
        import_arrow()
        before_s = time.process_time()
        done = compact(directory)
        rows = figures(rounds_us, dropped, done, time.process_time() - before_s)
    for row in rows:
        print(f"{row['name']:<32}{row['value']:>10.4g} {row['unit']:<10} {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(scratch: Path, rounds: int) -> tuple[list[tuple[float, float]], float]:
    """Processor time per request in microseconds, (without, with) of each round; and records lost."""
    *ports, one, other = free_ports(REPLICAS + 2)
    with ExitStack() as stack:
        backend = [sys.executable, str(HERE / "router_backend.py"), *map(str, ports)]
        serving(stack, "backend", backend, ports[0], scratch)
        routers = [
            serving(stack, name, router(scratch, name, port, ports), port, scratch)
            for name, port in (("one", one), ("other", other))
        ]
        uvloop.run(cpu_us(routers))  # first requests are slow
        measured = []
        for index in range(rounds):
            taken_us = np.zeros(2)
            for logging in (0, 1):
                for number, server in enumerate(routers):
                    server.signal(signal.SIGUSR2 if number == logging else signal.SIGUSR1)
                first, second = uvloop.run(cpu_us(routers))
                taken_us += (second, first) if logging == 0 else (first, second)
            measured.append((float(taken_us[0]) / 2, float(taken_us[1]) / 2))
            print(f"round {index + 1} of {rounds} is done", file=sys.stderr)
        return measured, sum(map(lost, routers))


def import_arrow() -> None:
    """Once, so that it is not counted for every record."""
    import pyarrow.parquet  # noqa: F401


def router(scratch: Path, name: str, port: int, backends: list[int]) -> list[str]:
    """Its configuration, and the command to start it with."""
    return serve_command(
        scratch / f"{name}.yaml",
        port,
        backends,
        program=(str(HERE / "outcome_log_router.py"),),
        outcome_log={"directory": str(scratch / name)},
    )


async def cpu_us(servers: list[Server]) -> list[float]:
    """Of each, under the same load at the same time, per request; failures are none of its kind."""
    before_s = [server.own_cpu_s for server in servers]
    loads = [load(server.port, STREAMS, ROUND_S) for server in servers]
    taken_us = []
    for server, began_s, seen in zip(servers, before_s, await asyncio.gather(*loads), strict=True):
        if seen.failed:
            raise RuntimeError(f"{seen.failed} requests failed: {seen.first}")
        taken_us.append(1e6 * (server.own_cpu_s - began_s) / max(seen.completed, 1))
    return taken_us


def lost(server: Server) -> float:
    """Records that the router could not write."""
    return server.metric("steersman_outcome_log_dropped_total")


def figures(
    rounds_us: list[tuple[float, float]], dropped: float, done: Compacted, compaction_s: float
) -> list[Row]:
    """One row for each."""
    without_us = [without for without, _ in rounds_us]
    compaction_us = 1e6 * compaction_s / max(done.records, 1)
    request_us = statistics.median(without_us)
    note = f"{done.records} requests logged"
    return [
        ratio(rounds_us, note),
        row("log.cpu_us", [logged - bare for bare, logged in rounds_us], "us", ""),
        row("log.request_cpu_us", without_us, "us", "without the log"),
        row("log.compaction_cpu_us", [compaction_us], "us", "per record, beside the router"),
        row("log.compaction_cpu_fraction", [compaction_us / request_us], "share", ""),
        row("log.framed_bytes", [done.bytes_before / max(done.records, 1)], "bytes", "per record"),
        row("log.compacted_bytes", [done.bytes_after / max(done.records, 1)], "bytes", "per record"),
        row("log.dropped", [dropped], "records", ""),
    ]


def ratio(rounds_us: list[tuple[float, float]], note: str) -> Row:
    """Of the sums over all rounds, with a 95 % bootstrap interval over rounds."""
    pairs = np.array(rounds_us)
    draws = np.random.default_rng(0).integers(len(pairs), size=(10_000, len(pairs)))
    sums = pairs[draws].sum(axis=1)
    lo, hi = np.quantile(sums[:, 1] / sums[:, 0] - 1.0, (0.025, 0.975)).tolist()
    without, logged = pairs.sum(axis=0).tolist()
    value = logged / without - 1.0
    between = f"{note}, 95 % interval {lo:.3f} to {hi:.3f}"
    return {
        "name": "log.cpu_fraction",
        "value": value,
        "lo": lo,
        "hi": hi,
        "unit": "share",
        "note": between,
    }


def row(name: str, values: list[float], unit: str, note: str) -> Row:
    """The median, and between which values they lay."""
    lo, hi = min(values), max(values)
    middle = statistics.median(values)
    return {"name": name, "value": middle, "lo": lo, "hi": hi, "unit": unit, "note": note}


if __name__ == "__main__":
    main()
