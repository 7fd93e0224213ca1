"""What hedging gains when one replica straggles: the same arrivals with it and without, over HTTP.

::

    python benchmarks/hedging.py [--quick] [--json FILE]

The `demo` scenario's four replicas are emulated, `steersman serve` under `p2c` stands before them, and
the same trace is replayed at 60 % load without hedging and with it, while

- `well`: nothing is wrong: what hedging costs;
- `slow`: one replica takes ten times as long for everything, all the time;
- `stalls`: one replica all but stands still (a hundred times as long) for three seconds of every ten:
  too short for ejection, and nothing that a scrape would have foretold.

Figures are the client's: p50 and p99 of TTFT, the share within both objectives, and of the router's
counters, second attempts for each request and those of them that won. `--quick` plays half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from steersman.env.scenario import load_scenario, load_source, make_trace
from steersman.serving.rehearsal.children import Children
from steersman.serving.rehearsal.stage import (
    Stage,
    choose_stage,
    start_backends,
    warm_up,
    write_router_config,
)
from steersman.serving.replay import ReplaySettings, replay, service_levels
from steersman.serving.replay_result import ReplayResult
from steersman.traces.trace import Trace

SCENARIO = "demo"
POLICY = "p2c"
LOAD = 0.6
SEED = 7
STRAGGLER = 1
SLOW, STALLED = 10.0, 100.0
STALL_S, EVERY_S = 3.0, 10.0
TROUBLES = ("well", "slow", "stalls")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--troubles", default=",".join(TROUBLES), help="separated by commas")
    parser.add_argument("--budget", type=float, default=0.02, help="second attempts for each request")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    scenario = load_scenario(SCENARIO)
    trace = make_trace(
        scenario,
        SEED,
        duration_s=30.0 if options.quick else 120.0,
        load=LOAD,
        split="evaluation",
        source=load_source(scenario, "evaluation"),
    )
    rows: list[dict[str, Any]] = []
    print(f"{len(trace)} requests at {LOAD:.0%} load")
    with tempfile.TemporaryDirectory() as place, Children(Path(place) / "logs") as children:
        stage = choose_stage(scenario, SCENARIO, Path(place), Path(place) / "bundle")
        start_backends(children, stage)
        for trouble, hedging in product(options.troubles.split(","), ("off", "on")):
            config = write_router_config(
                stage,
                POLICY,
                hedging={"enabled": hedging == "on", "budget_ratio": options.budget},
                bundle={"directory": ""},
            )
            name = f"router-{trouble}-{hedging}"
            children.start(name, "serve", "--config", str(config), ready=(f"{stage.router_url}/health",))
            try:
                result, page = asyncio.run(_play(stage, trace, trouble))
            finally:
                children.stop(name)
            rows += _rows(f"{trouble}, {hedging}", result, page)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


async def _play(stage: Stage, trace: Trace, trouble: str) -> tuple[ReplayResult, str]:
    """What the client measured, and the router's metrics page in the end."""
    sent = ReplaySettings(url=stage.router_url)
    await replay(warm_up(trace), sent)
    slo = service_levels(trace, [spec.profile for spec in stage.scenario.replicas])
    async with aiohttp.ClientSession() as session:
        straggling = asyncio.create_task(_straggle(session, stage.backend_urls[STRAGGLER], trouble))
        try:
            result = await replay(trace, sent, slo=slo)
        finally:
            straggling.cancel()
            with suppress(asyncio.CancelledError):
                await straggling
            await _slow_down(session, stage.backend_urls[STRAGGLER], 1.0)
        async with session.get(f"{stage.router_url}/metrics") as page:
            return result, await page.text()


async def _straggle(session: aiohttp.ClientSession, url: str, trouble: str) -> None:
    """Until cancelled."""
    if trouble == "slow":
        await _slow_down(session, url, SLOW)
    while trouble == "stalls":
        await asyncio.sleep(EVERY_S - STALL_S)
        await _slow_down(session, url, STALLED)
        await asyncio.sleep(STALL_S)
        await _slow_down(session, url, 1.0)


async def _slow_down(session: aiohttp.ClientSession, url: str, factor: float) -> None:
    async with session.post(f"{url}/emulator/faults", json={"slowdown": factor}) as answer:
        answer.raise_for_status()


def _rows(name: str, result: ReplayResult, page: str) -> list[dict[str, Any]]:
    p50_s, p99_s = np.quantile(result.ttft_s[result.ok], (0.5, 0.99))
    hedges = {
        found[1]: float(found[2])
        for found in re.finditer(r'^steersman_hedges_total{result="(\w+)"} (\S+)$', page, re.M)
    }
    values = {
        "p50_ttft_s": (float(p50_s), "s"),
        "p99_ttft_s": (float(p99_s), "s"),
        "slo_attainment": (float(result.slo_met.mean()), "share"),
        "not_served": (float((~result.ok).mean()), "share"),
        "second_attempts": (sum(hedges.values()) / len(result), "share"),
        "second_attempts_won": (hedges.get("won", 0.0) / len(result), "share"),
        "client_lateness_p99_s": (float(np.nanquantile(result.lateness_s, 0.99)), "s"),
    }
    print(f"{name:<12}" + "".join(f"  {key} {value:.3f}" for key, (value, _) in values.items()))
    return [
        {"name": f"{key}.{name}", "value": value, "lo": None, "hi": None, "unit": unit, "note": POLICY}
        for key, (value, unit) in values.items()
    ]


if __name__ == "__main__":
    main()
