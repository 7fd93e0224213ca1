"""`steersman evaluate`: the protocol of docs/evaluation.md, for policies and for predictors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.choices import DEFAULT_SCENARIOS, OneTrace, Scenarios
from steersman.cli.crew import Ray, crew
from steersman.cli.evaluate_predictors import predictors
from steersman.cli.evaluate_saturation import saturation
from steersman.cli.evaluate_tune import tune

if TYPE_CHECKING:
    from steersman.agents.evaluate.table import EvaluationTable

app = typer.Typer(
    help="Judge policies and predictors by the protocol of docs/evaluation.md.", no_args_is_help=True
)

DEFAULT_BASELINES = "p2c,least-connections,weighted-least-connections,llm-d-default,marginal-cost"


@app.command()
def routing(
    scenario: Scenarios = DEFAULT_SCENARIOS,
    trace: OneTrace = None,
    policy: Annotated[
        str | None,
        typer.Option(help="The policy judged; default: learned, the bundle's or the shipped one."),
    ] = None,
    baselines: Annotated[
        str, typer.Option(help="Policies it is compared with, separated by commas.")
    ] = DEFAULT_BASELINES,
    loads: Annotated[
        str, typer.Option(help="Shares of saturation, separated by commas.")
    ] = "0.6,0.8,0.95",
    seeds: Annotated[int, typer.Option(min=1, help="Runs in each cell; claims need 5.")] = 5,
    requests: Annotated[int, typer.Option(min=1, help="Counted arrivals in each run, at least.")] = 5000,
    window_s: Annotated[
        float, typer.Option(min=0, help="Counted seconds in each run, at least.")
    ] = 600.0,
    warmup_s: Annotated[float, typer.Option(min=0, help="Seconds before them, not counted.")] = 120.0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Loads 0.8,0.95, 3 seeds, 3000 requests: for watching, not for claims."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Directory of trained models: its policy, guarded, and its length model."),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(help="YAML file of guard settings; default: configs/policies/guard.yaml."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML page here: curves over the load, tables by cell.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes that share the runs; the figures stay the same.")
    ] = 1,
    ray: Ray = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print every run and ratio as one JSON document.")
    ] = False,
) -> None:
    """Compare a policy with baselines on unseen arrivals: J ratios with 95 % intervals, per cell.

    Arrivals come from the last quarter of the trace, which training and tuning do not see.
    """
    from steersman.agents.evaluate.comparisons import each_rival, watched
    from steersman.agents.evaluate.contestants import LEARNED, contestants, open_bundle
    from steersman.agents.evaluate.run import Protocol, evaluate, run_count
    from steersman.agents.guard import GuardSettings
    from steersman.cli.choices import measured, names, positive_loads
    from steersman.cli.common import command_line, notes, print_json, progress
    from steersman.env.scenario import load_scenario
    from steersman.traces.settings import load_settings

    models, length = open_bundle(bundle)
    judged = policy or LEARNED
    rivals = [name for name in names("--baselines", baselines) if name != judged]
    limits = load_settings(guard, GuardSettings) if guard else GuardSettings()
    factories = contestants([judged, *rivals], models, limits)
    protocol = Protocol(
        loads=(0.8, 0.95) if quick else positive_loads("--loads", loads),
        seeds=tuple(range(3 if quick else seeds)),
        requests=3000 if quick else requests,
        window_s=0.0 if quick else window_s,
        warmup_s=60.0 if quick else warmup_s,
        length=length,
    )
    described = [
        measured(load_scenario(name), trace, "evaluation") for name in names("--scenario", scenario)
    ]
    with progress() as bar, crew(ray, jobs) as workers:
        total = run_count(len(factories), len(described), protocol)
        task = bar.add_task(f"{judged} against {len(rivals)}", total=total, note="runs")
        table = evaluate(
            factories, described, protocol, jobs=workers, on_progress=partial(bar.advance, task)
        )
        bar.update(task, completed=len(table.runs))
    named = watched(table, judged, rivals)
    if report is not None:
        from steersman.agents.report.page import write
        from steersman.agents.report.routing import RoutingReport

        shown = RoutingReport(judged, rivals, table, named, aims=False, commands=[command_line()])
        write(shown.page(), report)
        notes.print(f"report: {report}")
    if json:
        rows = named + each_rival(table, judged, rivals)
        print_json({"policy": judged, "ratios": rows, **table.as_dict()})
    else:
        _print(table, judged, rivals)


app.command()(predictors)
app.command()(saturation)
app.command()(tune)


def _print(table: EvaluationTable, judged: str, rivals: list[str]) -> None:
    from steersman.cli.common import console
    from steersman.cli.tables import fallback_notes, ratios, show

    if rivals:
        show(ratios(table, judged, rivals))
    for cell in table.cells:
        for line in fallback_notes(table, cell):
            console.print(line)
