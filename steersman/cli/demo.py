"""`steersman demo`: the whole way once, on a real trace, from training to a compared replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steersman.agents.train import TrainResult
    from steersman.agents.train_settings import TrainSettings
    from steersman.serving.rehearsal.comparison import Comparison
    from steersman.serving.rehearsal.stage import Stage
    from steersman.serving.replay_result import ReplayResult
    from steersman.traces.trace import Trace

OLD, NEW = "p2c", "learned"

PREDICTOR_FIGURES = {
    "length.pinball_ratio_constant": "output length: pinball loss over that of a constant",
    "length.coverage_p90": "output length: share of requests within the predicted p90",
    "latency.ttft_mdape": "TTFT: median absolute percentage error",
    "latency.ttft_mdape_analytic": "TTFT: the same of the analytic estimate alone",
    "latency.ttft_coverage_p90": "TTFT: share of requests within the predicted p90",
    "latency.tpot_mdape": "TPOT: median absolute percentage error",
    "latency.tpot_mdape_analytic": "TPOT: the same of the analytic estimate alone",
    "latency.tpot_coverage_p90": "TPOT: share of requests within the predicted p90",
}
"""What the report shows of a training's metrics (`agents/fit/`)."""


def demo(
    config: Annotated[
        str, typer.Option(help="How to train: a name in configs/training, or a YAML file.")
    ] = "demo",
    out: Annotated[Path, typer.Option(help="Where reports, configurations and logs go.")] = Path(
        "reports/demo"
    ),
    mlruns: Annotated[Path, typer.Option(help="The local MLflow store.")] = Path("mlruns"),
    replay_s: Annotated[
        float, typer.Option(min=1, help="Length of each of the two replays, in seconds.")
    ] = 75.0,
    load: Annotated[
        float, typer.Option(min=0.05, max=2, help="Arrival rate of the replays, over saturation.")
    ] = 0.8,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train on the bundled trace, promote, serve emulated backends, replay with P2C and learned.

    Everything runs on loopback and needs no GPU. Ends with a comparison and an HTML report.
    """
    from steersman.cli.common import console, notes, print_json
    from steersman.env.saturation import with_traffic
    from steersman.env.scenario import load_scenario
    from steersman.serving.rehearsal.comparison import compare
    from steersman.serving.rehearsal.stage import choose_stage

    notes.rule("1/3  Train predictors and a routing policy in the cluster model")
    trained, settings = _train(config, out / "training", mlruns)
    bundle = trained.champion or trained.bundle.directory
    notes.print(f"Promoted to champion: version {trained.registered.version}. {trained.verdict}.")

    notes.rule("2/3  Serve emulated backends, replay a later part of the trace over HTTP")
    scenario = with_traffic(load_scenario(settings.scenario), settings.trace)
    stage = choose_stage(scenario, settings.scenario, out, bundle)
    trace = evaluation_slice(stage, load=load, duration_s=replay_s)
    results = _replay(stage, trace)

    notes.rule("3/3  Compare")
    table = compare(results)
    report = out / "report.html"
    places = _places(stage, mlruns, report)
    steps = _next_steps(stage, mlruns)
    _write_report(stage, trained, results, trace, report, places, steps)
    if json:
        summaries = {name: result.summary() for name, result in results.items()}
        ratios = {name: vars(ratio) for name, ratio in trained.ratios.items()}
        print_json({"replays": summaries, "j_ratio": ratios, "places": dict(places)})
        return
    console.print(_rich(table))
    for what, where in places:
        console.print(f"{what + ':':<14} {where}", highlight=False, soft_wrap=True)
    console.print("\nHow to go on:")
    for step in steps:
        console.print(f"  {step}", highlight=False, soft_wrap=True)


def evaluation_slice(stage: Stage, *, load: float, duration_s: float) -> Trace:
    """The first requests of the part of the trace that training never saw, at the wanted load."""
    from steersman.env.scenario import load_source, saturation_of
    from steersman.traces.arrivals import rescale

    rate_rps = load * saturation_of(stage.scenario, "evaluation")
    part = load_source(stage.scenario, "evaluation")
    return rescale(part.select(range(min(round(rate_rps * duration_s), len(part)))), rate_rps)


def _train(config: str, out: Path, mlruns: Path) -> tuple[TrainResult, TrainSettings]:
    from steersman.agents.registry import Registry
    from steersman.agents.train_settings import load_train_settings
    from steersman.cli.train import stage_bars

    settings = load_train_settings(config)
    # Seconds to load: a mistake in the settings is told before.
    from steersman.agents.train import train

    with stage_bars() as advance:
        result = train(settings, registry=Registry(mlruns), out=out, promote=True, progress=advance)
    return result, settings


def _replay(stage: Stage, trace: Trace) -> dict[str, ReplayResult]:
    from steersman.cli.common import notes, progress
    from steersman.serving.rehearsal.children import Children
    from steersman.serving.rehearsal.stage import play, start_backends

    results = {}
    with Children(stage.directory / "logs") as children:
        notes.print(f"Starting {len(stage.backend_urls)} emulated backends ...")
        start_backends(children, stage)
        for policy in (OLD, NEW):
            with progress() as bars:
                task = bars.add_task(f"replay with {policy}", total=len(trace), note="")

                def advance(done: int, failed: int) -> None:
                    note = f"{failed} not answered well" if failed else ""
                    bars.update(task, completed=done, note=note)  # noqa: B023 (called before the next)

                results[policy] = play(children, stage, policy, trace, on_progress=advance)
    return results


def _places(stage: Stage, mlruns: Path, report: Path) -> list[tuple[str, str]]:
    return [
        ("report", str(report.resolve())),
        ("MLflow store", str(mlruns.resolve() / "mlflow.db")),
        ("champion", str(stage.bundle)),
        ("outcome log", str(stage.outcome_log(NEW))),
        ("logs", str(stage.directory / "logs")),
    ]


def _next_steps(stage: Stage, mlruns: Path) -> list[str]:
    name = stage.scenario_source
    return [
        f"mlflow ui --backend-store-uri sqlite:///{mlruns.resolve() / 'mlflow.db'}",
        f"steersman trace inspect {stage.outcome_log(NEW)}",
        f"steersman emulate --scenario {name} --base-port {stage.first_port}",
        f"steersman serve --config {stage.router_config(NEW)}",
        f"steersman replay {stage.scenario.trace} --url {stage.router_url} --limit 200",
        f"steersman evaluate routing --scenario {name} --bundle {stage.bundle}",
    ]


def _write_report(
    stage: Stage,
    trained: TrainResult,
    results: dict[str, ReplayResult],
    trace: Trace,
    path: Path,
    places: Sequence[tuple[str, str]],
    steps: Sequence[str],
) -> None:
    from steersman.agents.report.page import write
    from steersman.serving.rehearsal.report import Rehearsal, build

    duration_s = float(trace.arrival_s[-1]) if len(trace) else 0.0
    rate_rps = len(trace) / duration_s if duration_s else 0.0
    rehearsal = Rehearsal(
        cluster=[
            (spec.replica_id, spec.profile.name, f"{spec.profile.decode_base_s * 1e3:.1f} ms + load")
            for spec in stage.scenario.replicas
        ],
        load=[
            f"{len(trace)} requests of {trace.name} that training never saw, sent in {duration_s:.0f} s "
            f"({rate_rps:.1f} requests per second), each answered token by token."
        ],
        results=results,
        training=_training_facts(trained),
        places=places,
        next_steps=steps,
    )
    write(build(rehearsal), path)


def _training_facts(trained: TrainResult) -> Any:
    import numpy as np

    from steersman.serving.rehearsal.report import Training

    curve = trained.curves.get("policy.check_ratio", [])
    spent = sum(trained.seconds.values())
    return Training(
        summary=[
            f"Model version {trained.registered.version} ({trained.bundle.version}), trained in "
            f"{spent / 60:.1f} minutes. The learned policy is {trained.verdict}.",
        ],
        predictors=[
            (label, f"{trained.metrics[name]:.3f}")
            for name, label in PREDICTOR_FIGURES.items()
            if name in trained.metrics
        ],
        curve=(np.array([x for x, _ in curve], float), np.array([y for _, y in curve], float)),
        ratios=[(f"against {name}", r.value, r.lo, r.hi) for name, r in trained.ratios.items()],
    )


def _rich(table: Comparison) -> Any:
    from rich.table import Table

    drawn = Table(*table.header)
    for column in drawn.columns[1:]:
        column.justify = "right"
    for row, best in zip(table.rows, table.best, strict=True):
        drawn.add_row(
            *(f"[bold green]{cell}[/]" if b else cell for cell, b in zip(row, best, strict=True))
        )
    return drawn
