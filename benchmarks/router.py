"""What a router costs, beside others, on one machine in one go.

::

    make peers
    python benchmarks/router.py [--quick] [--only NAME ...] [--bundle DIRECTORY] [--json FILE]

The same streamed chat (20 events, 10 ms apart, `router_backend.py`) at 1, 16, 64 and 256 open streams
(`router_load.py`) through: nothing (`direct`), Steersman with power of two choices, Steersman with all
on (learned policy and guard, predictors, outcome log), and the peers that are installed
(`router_peers.py`). All are started first and take turns, in a new order each round; a figure is the
median over rounds.

- `cpu_us.NAME`: processor time of the router's processes per request, at 64 streams; `.cN`: at N.
  Ratios within a run mean more than the figures: other work on the machine makes every one larger.
- `req_per_s.NAME`: answers per second at 256 streams, where the router or the machine is saturated.
- `added_p50_ms.NAME`, `added_p99_ms.NAME`: time to the first event less that of `direct`, at 64
  streams; `event_p99_ms.NAME`: an event's time from the backend to the client, at 64 streams.
- `rss_mb.1000_streams`: Steersman with all on, while 1 000 streams are open; `.NAME` for the others
  (not with `--quick`).

LiteLLM is asked for 64 streams at most: beyond that its answers take minutes here.

The learned policy is the shipped one, the predictors are those of `decision.py`; `fallback_share` says
how often the guard did not let it decide, which changes nothing about the work done before. `--bundle`
takes other models, and saves fitting these.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import router_peers
import uvloop
from own_router import serve_command
from router_backend import INTERVAL_MS
from router_load import Seen, load
from router_processes import Server, free_ports

CONCURRENCIES = (1, 16, 64, 256)
CPU_AT, LATENCY_AT, RATE_AT = 64, 64, 256
STREAMS, STREAMS_INTERVAL_MS = 1000, 400.0
BACKENDS = 2
OURS = ("steersman_p2c", "steersman_learned")
HERE = Path(__file__).parent
PREPARE = (
    "import sys; from pathlib import Path; from decision import prepare;"
    "prepare(Path(sys.argv[1]), quick=True)"
)

Row = dict[str, Any]


@dataclass
class Run:
    """One load through one router."""

    seen: Seen
    cpu_us: float
    """Of the router, per request."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these routers only")
    parser.add_argument("--bundle", type=Path, help="models for steersman_learned")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rounds, duration_s = (2, 1.5) if options.quick else (5, 4.0)
    with (
        tempfile.TemporaryDirectory() as scratch,
        started(Path(scratch), options.only, options.bundle) as servers,
    ):
        backend, *routers = servers
        runs = measure(backend, routers, rounds, duration_s)
        fallbacks = {router.name: fallback_share(router) for router in routers}
        open_many = [r for r in routers if fits(r, STREAMS) and (r.name in OURS or not options.quick)]
        memory = {router.name: uvloop.run(memory_mb(backend, router)) for router in open_many}
    rows = [*figures(runs), *memory_rows(memory), *fallback_rows(fallbacks), *missing(options.only)]
    for row in rows:
        value = "" if row["value"] is None else f"{row['value']:.4g}"
        print(f"{row['name']:<40}{value:>10} {row['unit']:<6} {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


@contextmanager
def started(scratch: Path, only: Sequence[str], bundle: Path | None) -> Iterator[list[Server]]:
    """The backend and every router, serving; the first is the backend."""
    *ports, p2c, learned = free_ports(BACKENDS + 2)
    script = [sys.executable, str(HERE / "router_backend.py"), *map(str, ports)]
    with ExitStack() as stack:

        def start(
            name: str, command: Sequence[str], port: int, ready: str, env: dict[str, str]
        ) -> Server:
            log = scratch / f"{name}.log"
            server = Server(name, command, port, log, ready=ready, environment=env)
            stack.callback(server.stop)
            return server

        servers = [start("direct", script, ports[0], "/health", {})]
        servers[0].wait_until_ready()
        for name, port in zip(OURS, (p2c, learned), strict=True):
            if not only or name in only:
                command = steersman(name, port, ports, scratch, bundle)
                servers.append(start(name, command, port, "/health", {"OMP_NUM_THREADS": "1"}))
        for peer in router_peers.ALL:
            if peer.installed and (not only or peer.name in only):
                (port,) = free_ports(1)
                command = peer.command(port, ports, scratch)
                servers.append(start(peer.name, command, port, peer.ready, peer.environment))
        for server in servers:
            server.wait_until_ready()
        time.sleep(2.0)  # some answer before they have found the replicas
        yield servers


def steersman(
    name: str, port: int, backends: Sequence[int], scratch: Path, bundle: Path | None
) -> list[str]:
    """The router's configuration, and the command to start it with."""
    sections: dict[str, Any] = {"policy": {"name": "p2c"}}
    if name == "steersman_learned":
        sections |= {
            "policy": {"name": "learned"},
            "bundle": {"directory": str((bundle or fitted(scratch)).resolve())},
            "outcome_log": {"directory": str(scratch / "log")},
        }
    return serve_command(scratch / f"{name}.yaml", port, backends, **sections)


def fitted(scratch: Path) -> Path:
    """Models of a real size, in a new bundle."""
    world = scratch / "world"
    world.mkdir()
    print("fitting predictors for steersman_learned ...", file=sys.stderr)
    command = [sys.executable, "-c", PREPARE, str(world)]
    subprocess.run(command, cwd=HERE, check=True, capture_output=True)
    return world / "bundle"


def measure(
    backend: Server, routers: Sequence[Server], rounds: int, duration_s: float
) -> dict[tuple[str, int], list[Run]]:
    """Every router at every concurrency, in turns."""
    runs: dict[tuple[str, int], list[Run]] = {}
    for router in routers:  # nobody's first requests count
        uvloop.run(load(router.port, 16, 0.5))
    order = random.Random(0)
    for index in range(rounds):
        for concurrency in CONCURRENCIES:
            turn = [server for server in (backend, *routers) if fits(server, concurrency)]
            order.shuffle(turn)
            for server in turn:
                run = one(server, concurrency, duration_s)
                runs.setdefault((server.name, concurrency), []).append(run)
        print(f"round {index + 1} of {rounds} is done", file=sys.stderr)
    return runs


def fits(server: Server, streams: int) -> bool:
    """Whether it answers so many streams in reasonable time."""
    return all(server.name != peer.name or streams <= peer.most_streams for peer in router_peers.ALL)


def one(server: Server, concurrency: int, duration_s: float) -> Run:
    """One load."""
    before_s = server.cpu_s
    seen = uvloop.run(load(server.port, concurrency, duration_s))
    return Run(seen, 1e6 * (server.cpu_s - before_s) / max(seen.completed, 1))


async def memory_mb(backend: Server, router: Server) -> float:
    """Memory of a router while many streams are open."""
    set_interval(backend, STREAMS_INTERVAL_MS)
    try:
        streams = asyncio.create_task(load(router.port, STREAMS, 0.0, ramp_s=2.0))
        most_mb = 0.0
        while not streams.done():
            await asyncio.sleep(0.2)
            most_mb = max(most_mb, router.rss_mb)
        seen = await streams
    finally:
        set_interval(backend, INTERVAL_MS)
    if seen.failed:
        print(f"{router.name}: {seen.failed} of {STREAMS} streams failed: {seen.first}", file=sys.stderr)
    return most_mb


def set_interval(backend: Server, interval_ms: float) -> None:
    """Of the backend's events, from now on."""
    url = f"http://127.0.0.1:{backend.port}/control?interval_ms={interval_ms:.0f}"
    urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b""), timeout=10).close()


def figures(runs: dict[tuple[str, int], list[Run]]) -> list[Row]:
    """One row for every router and kind of figure."""
    rows = []
    for name in dict.fromkeys(name for name, _ in runs):
        measured = [concurrency for concurrency in CONCURRENCIES if (name, concurrency) in runs]
        for concurrency in measured:
            found, base = runs[name, concurrency], runs["direct", concurrency]
            label = f"{name}.c{concurrency}"
            rows.append(row(f"cpu_us.{label}", [run.cpu_us for run in found], "us", note(found)))
            rows.append(row(f"req_per_s.{label}", [run.seen.per_s for run in found], "1/s", ""))
            for q in (50, 99):
                added = [
                    quantile(run, q) - quantile(direct, q)
                    for run, direct in zip(found, base, strict=True)
                ]
                rows.append(row(f"added_p{q}_ms.{label}", added, "ms", ""))
                event = [run.seen.quantile_ms(run.seen.delay_s, q / 100) for run in found]
                rows.append(row(f"event_p{q}_ms.{label}", event, "ms", ""))
        named = {each["name"]: each for each in rows}
        for kind, at in (
            ("cpu_us", CPU_AT),
            ("req_per_s", RATE_AT),
            ("added_p50_ms", LATENCY_AT),
            ("added_p99_ms", LATENCY_AT),
            ("event_p99_ms", LATENCY_AT),
        ):
            streams = min(at, measured[-1])
            figure = named[f"{kind}.{name}.c{streams}"]
            rows.append(figure | {"name": f"{kind}.{name}", "note": f"at {streams} streams"})
    return rows


def quantile(run: Run, q: int) -> float:
    """Of the time to the first event, in ms."""
    return run.seen.quantile_ms(run.seen.ttft_s, q / 100)


def note(found: Sequence[Run]) -> str:
    """How many requests a figure is of, and what went wrong."""
    completed = sum(run.seen.completed for run in found)
    failed = sum(run.seen.failed for run in found)
    first = next((run.seen.first for run in found if run.seen.first), "")
    return f"{completed} requests" + (f", {failed} failed: {first}" if failed else "")


def row(name: str, values: Sequence[float], unit: str, note: str) -> Row:
    """The median over rounds, and between which values they lay."""
    middle = statistics.median(values)
    return {
        "name": name,
        "value": middle,
        "lo": min(values),
        "hi": max(values),
        "unit": unit,
        "note": note,
    }


def memory_rows(memory: dict[str, float]) -> list[Row]:
    """`rss_mb`."""
    rows = [row(f"rss_mb.1000_streams.{name}", [value], "MB", "") for name, value in memory.items()]
    if "steersman_learned" in memory:
        rows.append(row("rss_mb.1000_streams", [memory["steersman_learned"]], "MB", "all on"))
    return rows


def fallback_share(router: Server) -> float | None:
    """Share of decisions that the learned policy did not make; None where there is none."""
    if router.name != "steersman_learned":
        return None
    decisions = router.metric("steersman_decisions_total")
    return router.metric("steersman_fallbacks_total") / max(decisions, 1.0)


def fallback_rows(shares: dict[str, float | None]) -> list[Row]:
    """`fallback_share`."""
    return [
        row(f"fallback_share.{name}", [share], "share", "of decisions, by the guard")
        for name, share in shares.items()
        if share is not None
    ]


def missing(only: Sequence[str]) -> list[Row]:
    """A row for every peer that is not installed."""
    return [
        {
            "name": f"cpu_us.{peer.name}",
            "value": None,
            "lo": None,
            "hi": None,
            "unit": "us",
            "note": "missing: not installed; `make peers` installs it",
        }
        for peer in router_peers.ALL
        if not peer.installed and (not only or peer.name in only)
    ]


if __name__ == "__main__":
    main()
