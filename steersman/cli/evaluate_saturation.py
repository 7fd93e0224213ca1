"""`steersman evaluate saturation`."""

from __future__ import annotations

from typing import Annotated

import typer

from steersman.cli.choices import DEFAULT_SCENARIOS, OneTrace, Scenarios


def saturation(
    scenario: Scenarios = DEFAULT_SCENARIOS,
    trace: OneTrace = None,
    splits: Annotated[
        str, typer.Option(help="Whose requests, separated by commas.")
    ] = "all,train,tune,evaluation",
    seeds: Annotated[int, typer.Option(min=1, help="Runs that are averaged.")] = 3,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as one JSON document.")
    ] = False,
) -> None:
    """Measure how many requests per second a scenario can complete, as its file states it.

    Every replica always has requests waiting; marginal cost dispatches them.
    """
    from steersman.cli.choices import names, split_names
    from steersman.cli.common import console, print_json, progress
    from steersman.env.saturation import measure_saturation, with_traffic
    from steersman.env.scenario import load_scenario

    wanted, parts = names("--scenario", scenario), split_names("--splits", splits)
    found: dict[str, dict[str, float]] = {}
    with progress() as bar:
        task = bar.add_task("saturation", total=len(wanted) * len(parts) * seeds, note="runs")
        for name in wanted:
            described = load_scenario(name)
            if trace is not None and trace != described.trace:
                described = with_traffic(described, trace)
            for split in parts:
                runs = []
                for seed in range(seeds):
                    runs.append(measure_saturation(described, split, seed=seed))
                    bar.advance(task)
                found.setdefault(name, {})[split] = sum(runs) / seeds
    if json:
        print_json(found)
        return
    for name, by_split in found.items():
        figures = ", ".join(f"{split} {rps:.1f}" for split, rps in by_split.items())
        console.print(f"{name}: {figures} requests/s", highlight=False)
