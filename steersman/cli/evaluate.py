"""`steersman evaluate`: the protocol of docs/evaluation.md, for policies and for predictors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.crew import Ray, crew

if TYPE_CHECKING:
    from steersman.agents.evaluate.table import EvaluationTable

app = typer.Typer(
    help="Judge policies and predictors by the protocol of docs/evaluation.md.", no_args_is_help=True
)

DEFAULT_SCENARIOS = "homogeneous,mixed,prefix,stale"
DEFAULT_BASELINES = "p2c,least-connections,weighted-least-connections,llm-d-default,marginal-cost"


@app.command()
def routing(
    scenario: Annotated[
        str, typer.Option(help="Scenarios, separated by commas: bundled names, or YAML files.")
    ] = DEFAULT_SCENARIOS,
    trace: Annotated[
        str | None, typer.Option(help="Trace for all of them: a bundled name, or a file.")
    ] = None,
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


@app.command()
def predictors(
    scenario: Annotated[
        str, typer.Option(help="The cluster: a bundled scenario's name, or a YAML file.")
    ] = "mixed",
    trace: Annotated[
        str | None, typer.Option(help="Trace: a bundled name, or a file; default: the scenario's.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Directory of trained models; without, only the rules are judged."),
    ] = None,
    loads: Annotated[str, typer.Option(help="Shares of saturation, separated by commas.")] = "0.6,0.95",
    seeds: Annotated[int, typer.Option(min=1, help="Runs at each load.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Counted arrivals in each run.")] = 2000,
    mlruns: Annotated[
        Path, typer.Option("--mlruns", help="The MLflow store where the figures are recorded.")
    ] = Path("mlruns"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as one JSON document.")
    ] = False,
) -> None:
    """Judge the predictions of output length and latency on unseen arrivals.

    The bundle's models stand beside the rules that serve without them. Figures and plots of the
    calibration are recorded in MLflow.
    """
    from steersman.agents.evaluate.contestants import open_bundle
    from steersman.agents.evaluate.predictions import judge_latency, judge_length
    from steersman.agents.evaluate.predictions_record import predictions_record
    from steersman.agents.evaluate.run import Protocol
    from steersman.agents.registry import Registry
    from steersman.cli.choices import measured, positive_loads
    from steersman.cli.common import print_json, progress
    from steersman.env.scenario import load_scenario, load_source
    from steersman.predictors.latency import AnalyticLatency, LatencyModel, LatencyPredictor
    from steersman.predictors.length import FallbackLength, LengthPredictor

    registry = Registry(mlruns)
    registry.store.check()
    models, length = open_bundle(bundle)
    lengths: dict[str, LengthPredictor] = {"rolling": FallbackLength()}
    latencies: dict[str, LatencyPredictor] = {"analytic": AnalyticLatency()}
    if models is not None:
        lengths["model"] = length
        latency = LatencyModel.from_bundle(models)
        if latency is not None:
            latencies["model"] = latency
    protocol = Protocol(
        loads=positive_loads("--loads", loads),
        seeds=tuple(range(seeds)),
        requests=requests,
        window_s=0.0,
        warmup_s=60.0,
        length=length,
    )
    described = measured(load_scenario(scenario), trace, "evaluation")
    with progress() as bar:
        task = bar.add_task(described.name, total=len(protocol.loads) * seeds, note="runs")
        found = judge_length(lengths, described)
        found += judge_latency(
            latencies, described, protocol, on_progress=lambda runs: bar.advance(task, runs)
        )
    registry.log_evaluation(
        predictions_record(
            found,
            {"scenario": described.name, "loads": loads, "seeds": seeds, "requests": requests},
            load_source(described),
            bundle="" if models is None else models.version,
        ),
        run_name=f"predictors {described.name}",
    )
    if json:
        print_json([row for quality in found for row in quality.rows()])
        return
    from steersman.cli.tables import qualities, show

    show(qualities(found))


@app.command()
def saturation(
    scenario: Annotated[
        str, typer.Option(help="Scenarios, separated by commas: bundled names, or YAML files.")
    ] = DEFAULT_SCENARIOS,
    trace: Annotated[
        str | None, typer.Option(help="Trace for all of them: a bundled name, or a file.")
    ] = None,
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


@app.command()
def tune(
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")],
    scenario: Annotated[
        str, typer.Option(help="Scenarios, separated by commas: bundled names, or YAML files.")
    ] = DEFAULT_SCENARIOS,
    once: Annotated[
        bool, typer.Option("--once", help="One set of constants for all scenarios together.")
    ] = False,
    evaluations: Annotated[int, typer.Option(min=10, help="Sets of constants tried.")] = 200,
    requests: Annotated[int, typer.Option(min=1, help="Counted requests of an episode.")] = 1500,
    loads: Annotated[
        str, typer.Option(help="Shares of saturation, separated by commas.")
    ] = "0.6,0.8,0.95",
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the constants; default: configs/policies/tuned.")
    ] = None,
    notebook: Annotated[
        Path | None, typer.Option(help="File that keeps scores, so that the command can go on later.")
    ] = None,
    commit: Annotated[str, typer.Option(help="Written into the files.")] = "",
    bundle: Annotated[
        Path | None,
        typer.Option(help="Directory of trained models, which then predict; default: the rules do."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the searches.")] = 1,
    ray: Ray = None,
) -> None:
    """Find the best constants of a policy on the tuning part of each scenario's traffic.

    `NAME:tuned` and, with --once, `NAME:tuned-once` then stand for it in `evaluate routing`.
    """
    from dataclasses import replace

    from steersman.agents.evaluate.constants import FOLDER
    from steersman.agents.evaluate.contestants import open_bundle
    from steersman.agents.evaluate.course import run_count
    from steersman.agents.evaluate.tune import TUNING
    from steersman.agents.evaluate.tuning import TuningPlan
    from steersman.cli.choices import measured, names, positive_loads
    from steersman.cli.common import console, progress
    from steersman.env.scenario import load_scenario
    from steersman.predictors.latency import LatencyModel

    models, length = open_bundle(bundle)
    described = [measured(load_scenario(name), None, "tune") for name in names("--scenario", scenario)]
    plan = TuningPlan(
        policies=tuple(names("--policy", policy)),
        scenarios=tuple(described),
        once=once,
        protocol=replace(
            TUNING, requests=requests, loads=positive_loads("--loads", loads), length=length
        ),
        latency=None if models is None else LatencyModel.from_bundle(models),
        bundle="" if models is None else models.version,
        evaluations=evaluations,
        seed=seed,
        commit=commit,
        folder=out or FOLDER,
        notebook=notebook,
    )
    with progress() as bar, crew(ray, jobs) as workers:
        total = run_count((evaluations + 1) * len(plan.policies), len(described), plan.protocol)
        row = bar.add_task(f"{len(plan.tasks)} searches", total=total, note="runs")
        found = plan.carry_out(workers, partial(bar.advance, row))
        bar.update(row, completed=total)
    for tuned, where, path in found:
        console.print(
            f"{tuned.policy}, {where}: J {tuned.score:.3f} of published, {path}", highlight=False
        )


def _print(table: EvaluationTable, judged: str, rivals: list[str]) -> None:
    from steersman.cli.common import console
    from steersman.cli.tables import fallback_notes, ratios, show

    if rivals:
        show(ratios(table, judged, rivals))
    for cell in table.cells:
        for line in fallback_notes(table, cell):
            console.print(line)
