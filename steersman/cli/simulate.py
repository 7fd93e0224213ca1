"""`steersman simulate`: one trace, one cluster, several policies, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman.agents.evaluate.table import EvaluationTable

DEFAULT_POLICIES = "p2c,least-connections,marginal-cost"


def simulate(
    scenario: Annotated[
        str, typer.Argument(help="The cluster: a bundled scenario's name, or a YAML file.")
    ] = "mixed",
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas; the first is the baseline. With --bundle, "
            "'learned' is one, and is added by default.",
            show_default=DEFAULT_POLICIES,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Trace to replay: a bundled name or a file; default: the scenario's."),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(help="Arrival rate as a share of saturation; default: the scenario's."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy, on different arrivals.")] = 3,
    requests: Annotated[int, typer.Option(min=1, help="Arrivals that are counted in each run.")] = 3000,
    warmup_s: Annotated[
        float, typer.Option(min=0, help="Simulated seconds before them that are not counted.")
    ] = 60.0,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Directory of trained models: its policy, guarded, and its length model."),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(help="YAML file of guard settings; default: configs/policies/guard.yaml."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every run as one JSON document.")] = False,
) -> None:
    """Replay a trace on a simulated cluster under several policies, and compare them.

    Arrivals are blocks of the trace, resampled to the wanted load; all policies get the same ones.
    """
    from steersman.agents.evaluate.contestants import LEARNED, contestants, open_bundle
    from steersman.agents.evaluate.run import Protocol, evaluate, run_count
    from steersman.agents.guard import GuardSettings
    from steersman.cli.choices import measured, names, positive_loads
    from steersman.cli.common import print_json, progress
    from steersman.env.scenario import load_scenario
    from steersman.traces.settings import load_settings

    models, length = open_bundle(bundle)
    if policies is None:
        policies = f"{DEFAULT_POLICIES},{LEARNED}" if models else DEFAULT_POLICIES
    limits = load_settings(guard, GuardSettings) if guard else GuardSettings()
    factories = contestants(names("--policies", policies), models, limits)
    described = load_scenario(scenario)
    loads = positive_loads("--load", str(described.load if load is None else load))
    described = measured(described, trace)
    protocol = Protocol(
        loads=loads,
        seeds=tuple(range(seeds)),
        requests=requests,
        window_s=0.0,
        warmup_s=warmup_s,
        split="all",
        length=length,
    )
    with progress() as bar:
        task = bar.add_task(described.name, total=run_count(len(factories), 1, protocol), note="runs")
        table = evaluate(
            factories, [described], protocol, on_progress=lambda runs: bar.advance(task, runs)
        )
        bar.update(task, completed=len(table.runs))
    if json:
        print_json(_document(table))
    else:
        _print(table)


def _document(table: EvaluationTable) -> dict[str, object]:
    baseline = table.policies[0]
    return {"baseline": baseline, "ratios": table.rows(baseline), **table.as_dict()}


def _print(table: EvaluationTable) -> None:
    from steersman.cli.common import console
    from steersman.cli.tables import comparison, fallback_notes, show

    for cell in table.cells:
        show(comparison(table, cell))
        for line in fallback_notes(table, cell):
            console.print(line)
