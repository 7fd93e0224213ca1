"""J of every policy over others, by the protocol of docs/evaluation.md.

::

    python benchmarks/policies.py [--quick] [--json FILE] [--bundle DIR]

Each policy is compared with `p2c` and with `marginal-cost`, on `homogeneous`, `mixed`, `prefix` and
`stale`. `--quick` takes loads of 80 and 95 %, 3 seeds and 3 000 requests; the full run 60, 80 and 95 %,
5 seeds, and at least 10 minutes and 5 000 requests.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from steersman.agents.evaluate.contestants import LEARNED, contestants, open_bundle
from steersman.agents.evaluate.run import Protocol, evaluate, run_count
from steersman.agents.policies import POLICY_NAMES
from steersman.env.scenario import load_scenario

SCENARIOS = ("homogeneous", "mixed", "prefix", "stale")
BASELINES = ("p2c", "marginal-cost")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--bundle", type=Path, help="trained models; adds the learned policy")
    options = parser.parse_args()
    models, length = open_bundle(options.bundle)
    names = [*POLICY_NAMES, LEARNED] if models else list(POLICY_NAMES)
    quick = Protocol(
        loads=(0.8, 0.95), seeds=(0, 1, 2), requests=3000, window_s=0.0, warmup_s=60.0, length=length
    )
    protocol = quick if options.quick else Protocol(length=length)
    scenarios = [load_scenario(name) for name in SCENARIOS]
    total = run_count(len(names), len(scenarios), protocol)
    done, started = 0.0, time.monotonic()

    def progress(runs: float) -> None:
        nonlocal done
        done += runs
        spent = time.monotonic() - started
        sys.stderr.write(f"\r{done:6.1f} of {total} runs, {spent:.0f} s")

    table = evaluate(contestants(names, models), scenarios, protocol, on_progress=progress)
    sys.stderr.write("\n")
    rows = [row for baseline in BASELINES for row in table.rows(baseline)]
    for row in rows:
        print(f"{row['name']:<70}{row['value']:>8.3f}  [{row['lo']:.3f}, {row['hi']:.3f}]")
    for cell in table.cells:
        trips = {reason: n for reason, n in table.fallbacks(LEARNED, cell).items() if n}
        if trips:
            print(f"fallbacks of {LEARNED}, {cell}: {trips}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
