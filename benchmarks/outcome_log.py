"""What the outcome log costs the router, side by side on one machine in one go.

::

    python benchmarks/outcome_log.py [--quick] [--json FILE]

Routers that are alike but for the log serve the same streamed chat (20 events, 10 ms apart,
`router_backend.py`) to 48 open streams, in turns; 8 replicas, the policy that ships, guarded. Then the
log is compacted, as the router has it done by a process of the lowest priority.

- `log.cpu_fraction`: processor time per request with the log, over that without, less 1 (the writing
  thread included, compaction not): of the sums over rounds, in which both take turns;
- `log.cpu_us`: the difference, the median over rounds; `log.request_cpu_us`: of a request without;
- `log.compaction_cpu_us`: processor time of compaction, per record, without the second or so that its
  process takes to start, per segment; `log.compaction_cpu_fraction`:
  over that of a request;
- `log.framed_bytes`, `log.compacted_bytes`: per record on disk;
- `log.dropped`: records that were not written (0, or the rest means nothing).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import router_peers
import uvloop
import yaml
from router_load import load
from router_processes import Server, free_ports

from steersman.traces.outcome_compaction import Compacted, compact

REPLICAS = 8
STREAMS = 48
PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b")
HERE = Path(__file__).parent

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rounds, duration_s = (8, 2.0) if options.quick else (24, 3.0)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "log"
        rounds_us, dropped = measure(Path(scratch), directory, rounds, duration_s)
        import_arrow()
        before_s = time.process_time()
        done = compact(directory)
        rows = figures(rounds_us, dropped, done, time.process_time() - before_s)
    for row in rows:
        print(f"{row['name']:<32}{row['value']:>10.4g} {row['unit']:<10} {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(
    scratch: Path, log: Path, rounds: int, duration_s: float
) -> tuple[list[tuple[float, float]], float]:
    """Processor time per request in microseconds, (without, with) of each round; and records lost."""
    *ports, without, logging = free_ports(REPLICAS + 2)
    with ExitStack() as stack:

        def start(name: str, command: list[str], port: int) -> Server:
            environment = {"OMP_NUM_THREADS": "1"}
            server = Server(name, command, port, scratch / f"{name}.out", environment=environment)
            stack.callback(server.stop)
            server.wait_until_ready()
            return server

        backend = [sys.executable, str(HERE / "router_backend.py"), *map(str, ports)]
        start("backend", backend, ports[0])
        routers = [
            start("without", router(scratch / "without.yaml", without, ports, None), without),
            start("with", router(scratch / "with.yaml", logging, ports, log), logging),
        ]
        for server in routers:  # first requests are slow
            uvloop.run(load(server.port, STREAMS, 1.0))
        order = random.Random(0)
        measured = []
        for index in range(rounds):
            turn = list(routers)
            order.shuffle(turn)
            taken = {server.name: cpu_us(server, duration_s) for server in turn}
            measured.append((taken["without"], taken["with"]))
            print(f"round {index + 1} of {rounds} is done", file=sys.stderr)
        return measured, lost(routers[1])


def import_arrow() -> None:
    """Once, so that it is not counted for every record."""
    import pyarrow.parquet  # noqa: F401


def router(path: Path, port: int, backends: list[int], log: Path | None) -> list[str]:
    """Its configuration, and the command to start it with."""
    settings: dict[str, Any] = {
        "port": port,
        "backends": [
            {"url": url, "profile": PROFILES[i % len(PROFILES)]}
            for i, url in enumerate(router_peers.urls(backends))
        ],
        "outcome_log": {"directory": "" if log is None else str(log)},
    }
    path.write_text(yaml.safe_dump(settings))
    return [sys.executable, "-m", "steersman", "serve", "--config", str(path)]


def cpu_us(server: Server, duration_s: float) -> float:
    """Of one load, per request; failures are none of its kind."""
    before_s = server.cpu_s
    seen = uvloop.run(load(server.port, STREAMS, duration_s))
    if seen.failed:
        raise RuntimeError(f"{seen.failed} requests failed: {seen.first}")
    return 1e6 * (server.cpu_s - before_s) / max(seen.completed, 1)


def lost(server: Server) -> float:
    """Records that the router could not write."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    page = urllib.request.urlopen(url, timeout=60).read().decode()
    lines = [
        line for line in page.splitlines() if line.startswith("steersman_outcome_log_dropped_total ")
    ]
    return float(lines[0].rpartition(" ")[2])


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
