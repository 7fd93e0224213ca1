"""`steersman train`: predictors and the routing policy, from a trace to a registered bundle."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli.crew import Ray
from steersman.cli.promote import TRACKING_VARIABLE
from steersman.cli.promote import promote as promote_version
from steersman.cli.refit import refit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steersman.agents.train import StageProgress, TrainResult
    from steersman.agents.train_settings import TrainSettings, What

app = typer.Typer(
    help="Train predictors and the routing policy, and promote them.", no_args_is_help=True
)

Config = Annotated[
    str,
    typer.Option(help="Settings: 'default', 'demo', or a YAML file (docs/training.md lists the keys)."),
]
ScenarioName = Annotated[
    str | None, typer.Option("--scenario", help="Cluster to train for: a bundled name, or a YAML file.")
]
TraceName = Annotated[
    str | None,
    typer.Option("--trace", help="Traffic: a bundled name, or a file; default: the scenario's."),
]
Budget = Annotated[
    float | None, typer.Option("--budget-s", min=1, help="Wall time for the policy, in seconds.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of everything random.")]
Out = Annotated[
    Path | None, typer.Option(help="Work directory: checkpoint and bundle; default: MLRUNS/training.")
]
Store = Annotated[Path, typer.Option("--mlruns", help="The MLflow store.")]
Promote = Annotated[
    bool, typer.Option("--promote/--no-promote", help="Make the result the champion that routers serve.")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the policy from the checkpoint in the work directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
MLRUNS = Path("mlruns")

app.command()(refit)
app.command("promote")(promote_version)


@app.command("all")
def train_all(
    config: Config = "default",
    scenario: ScenarioName = None,
    trace: TraceName = None,
    budget_s: Budget = None,
    seed: Seed = None,
    out: Out = None,
    mlruns: Store = MLRUNS,
    promote: Promote = False,
    resume: Resume = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Fit the predictors, train the policy, compare it with its baselines, record everything."""
    from steersman.agents.train_settings import What

    settings = _settings(config, scenario, trace, budget_s, seed)
    _run(settings, What.ALL, None, mlruns, out, promote=promote, resume=resume, json=json, ray=ray)


@app.command()
def predictors(
    config: Config = "default",
    scenario: ScenarioName = None,
    trace: TraceName = None,
    seed: Seed = None,
    out: Out = None,
    mlruns: Store = MLRUNS,
    promote: Promote = False,
    json: Json = False,
) -> None:
    """Fit the output-length and latency models alone."""
    from steersman.agents.train_settings import What

    settings = _settings(config, scenario, trace, None, seed)
    _run(settings, What.PREDICTORS, None, mlruns, out, promote=promote, resume=False, json=json)


@app.command()
def policy(
    config: Config = "default",
    scenario: ScenarioName = None,
    trace: TraceName = None,
    budget_s: Budget = None,
    seed: Seed = None,
    models: Annotated[
        Path | None,
        typer.Option("--predictors", help="Bundle whose predictors to keep; default: the champion's."),
    ] = None,
    out: Out = None,
    mlruns: Store = MLRUNS,
    promote: Promote = False,
    resume: Resume = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Train the routing policy on top of predictors that exist (without any: a constant guess)."""
    from steersman.agents.train_settings import What

    settings = _settings(config, scenario, trace, budget_s, seed)
    _run(settings, What.POLICY, models, mlruns, out, promote=promote, resume=resume, json=json, ray=ray)


def _settings(
    config: str, scenario: str | None, trace: str | None, budget_s: float | None, seed: int | None
) -> TrainSettings:
    from steersman.agents.train_settings import load_train_settings

    settings = load_train_settings(config)
    named = {"scenario": scenario, "trace": trace, "seed": seed}
    settings = settings.model_copy(
        update={key: value for key, value in named.items() if value is not None}
    )
    if budget_s is not None:
        settings = settings.model_copy(
            update={"policy": settings.policy.model_copy(update={"budget_s": budget_s})}
        )
    return settings


def _run(
    settings: TrainSettings,
    what: What,
    models: Path | None,
    mlruns: Path,
    out: Path | None,
    *,
    promote: bool,
    resume: bool,
    json: bool,
    ray: str | None = None,
) -> None:
    from steersman.agents.registry import Registry
    from steersman.agents.train_settings import What
    from steersman.cli.common import print_json
    from steersman.cli.crew import crew
    from steersman.predictors.bundle import MANIFEST, load_bundle

    registry = Registry(mlruns, tracking_uri=os.environ.get(TRACKING_VARIABLE, ""))
    base = None
    if what is What.POLICY:
        champion = registry.champion_directory
        if models is None and (champion / MANIFEST).is_file():
            models = champion
        base = None if models is None else load_bundle(models)
    # Seconds to load: mistakes are told before.
    from steersman.agents.train import train

    with crew(ray, settings.jobs) as jobs, stage_bars() as tell:
        result = train(
            settings.model_copy(update={"jobs": jobs}),
            what=what,
            registry=registry,
            out=out or mlruns / "training",
            promote=promote,
            resume=resume,
            predictors=base,
            progress=tell,
        )
    if json:
        print_json(summary(result))
    else:
        _print(result, mlruns)


@contextmanager
def stage_bars() -> Iterator[StageProgress]:
    """One progress bar for each stage of a training, on stderr."""
    from steersman.cli.common import progress

    with progress() as bars:
        tasks: dict[str, Any] = {}

        def tell(stage: str, share: float, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(str(stage), total=100, note="")
            bars.update(tasks[stage], completed=int(100 * share), note=note)

        yield tell


def summary(result: TrainResult) -> dict[str, Any]:
    """The result for a program."""
    from dataclasses import asdict

    return {
        "bundle": {"version": result.bundle.version, "directory": str(result.bundle.directory)},
        "registered": asdict(result.registered),
        "champion": None if result.champion is None else str(result.champion),
        "verdict": result.verdict,
        "j_ratios": {name: asdict(ratio) for name, ratio in result.ratios.items()},
        "metrics": dict(result.metrics),
        "seconds": dict(result.seconds),
    }


def _print(result: TrainResult, mlruns: Path) -> None:
    from steersman.cli.common import console
    from steersman.cli.tables import comparison, show

    if result.table is not None:
        for cell in result.table.cells:
            show(comparison(result.table, cell))
        for line in result.verdict.split("; "):
            console.print(f"learned is {line}")
    version = result.registered.version
    console.print(f"bundle {result.bundle.version} in {result.bundle.directory}")
    console.print(f"recorded as version {version} of the registered model, in {mlruns}")
    if result.champion is None:
        console.print(f"to serve it: steersman promote {version}")
    else:
        console.print(f"champion: {result.champion}")
