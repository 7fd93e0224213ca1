"""What soft affinity gains: each policy with and without it, by the evaluation protocol.

    python benchmarks/affinity.py [--quick] [--json FILE]

Rows: `j_ratio.SCENARIO.LOAD.POLICY` (J with session affinity over J without, 95 % interval of a paired
bootstrap over seeds), and `j`, `prefix_hit_rate`, `ttft_p90_s` of each.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from steersman.agents.affinity import AffinitySettings, GroupKey, Sticky
from steersman.agents.evaluate.run import Protocol, evaluate, policy_factory
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.guard import Clock
from steersman.agents.policy import Policy
from steersman.env.scenario import load_scenario

POLICIES = ("p2c", "llm-d-default", "marginal-cost")
SCENARIOS = ("prefix", "agents")
SUFFIX = "+affinity"


def sticky(name: str, settings: AffinitySettings, seed: int, clock: Clock) -> Policy:
    """A policy behind affinity, for one run."""
    return Sticky(policy_factory(name)(seed, clock), settings)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="What soft affinity gains.")
    parser.add_argument("--quick", action="store_true", help="3 seeds, 1500 requests")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="only these")
    parser.add_argument("--slower-s", type=float, default=AffinitySettings().slower_s)
    options = parser.parse_args()
    settings = AffinitySettings(keys=(GroupKey.SESSION,), slower_s=options.slower_s)
    contestants: dict[str, Any] = {}
    for name in POLICIES:
        contestants[name] = policy_factory(name)
        contestants[name + SUFFIX] = partial(sticky, name, settings)
    rows: list[dict[str, Any]] = []
    for scenario in options.scenario or SCENARIOS:
        seeds, requests = (3, 1500) if options.quick else (5, 5000 if scenario == "prefix" else 1500)
        protocol = Protocol(
            loads=(0.8, 0.95), seeds=tuple(range(seeds)), requests=requests, window_s=0.0, warmup_s=60.0
        )
        rows += show(rows_of(evaluate(contestants, [load_scenario(scenario)], protocol)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def show(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print as a table."""
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.3f}, {row['hi']:.3f}]"
        print(f"{row['name']:50} {row['value']:8.3f}{interval}", flush=True)
    return rows


def rows_of(table: EvaluationTable) -> list[dict[str, Any]]:
    """Ratios, hit rates and latencies of every cell."""
    rows: list[dict[str, Any]] = []
    for cell in table.cells:
        where = f"{cell.scenario}.{cell.load:.0%}"
        for name in POLICIES:
            ratio = table.ratio(name + SUFFIX, name, cells=[cell])
            rows.append(_row(f"j_ratio.{where}.{name}", ratio.value, ratio.lo, ratio.hi, "ratio"))
            for each in (name, name + SUFFIX):
                for figure, unit in (("j", ""), ("prefix_hit_rate", "share"), ("ttft_p90_s", "s")):
                    value = table.mean(each, cell, figure)
                    rows.append(_row(f"{figure}.{where}.{each}", value, None, None, unit))
    return rows


def _row(name: str, value: float, lo: float | None, hi: float | None, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "lo": lo, "hi": hi, "unit": unit, "note": ""}


if __name__ == "__main__":
    main()
