"""`steersman retrain`: from a router's outcome log to a challenger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from steersman.cli.crew import Ray
from steersman.cli.promote import TRACKING_VARIABLE

if TYPE_CHECKING:
    from steersman.agents.retrain.plan import RetrainResult
    from steersman.agents.retrain.settings import RetrainSettings
    from steersman.agents.train import Stage


def retrain(
    log: Annotated[Path, typer.Option("--log", help="Directory of the outcome log.")],
    config: Annotated[
        str, typer.Option(help="Settings: 'default', or a YAML file (docs/retrain.md lists the keys).")
    ] = "default",
    budget_s: Annotated[
        float | None, typer.Option("--budget-s", min=1, help="Wall time for the policy, in seconds.")
    ] = None,
    since: Annotated[
        float | None, typer.Option(help="Unix time: what arrived earlier is not looked at.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of everything random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Work directory, of this alone; default: MLRUNS/retraining.")
    ] = None,
    mlruns: Annotated[Path, typer.Option("--mlruns", help="The MLflow store.")] = Path("mlruns"),
    every: Annotated[
        float | None,
        typer.Option(min=1, help="Go on for ever, and retrain so often, in seconds."),
    ] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Niceness of this process.")] = 0,
    ray: Ray = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Refit profiles, predictors and policy on logged traffic, and register the result as challenger.

    The log is refused, with the reason, if it is too small or not fit to learn from. Champion and
    challenger meet on its last part, and the verdict is kept with the model. Interrupted, the same
    command goes on where it was.
    """
    from steersman.cli.common import notes, print_json

    if nice:
        os.nice(nice)
    settings = _settings(config, budget_s, seed)
    run = _Run(settings, log, since, out or mlruns / "retraining", mlruns, ray)

    def tell(result: RetrainResult) -> None:
        if json:
            print_json(summary(result))
        else:
            _print(result, mlruns)

    if every is None:
        tell(run())
        return
    import time

    from steersman.agents.retrain.schedule import Schedule

    schedule = Schedule(
        every, run, on_result=tell, on_refusal=lambda error: notes.print(f"not retrained: {error}")
    )
    while True:
        time.sleep(schedule.step(time.monotonic()))


def summary(result: RetrainResult) -> dict[str, Any]:
    """The result for a program."""
    from dataclasses import asdict

    return {
        "bundle": {"version": result.bundle.version, "directory": str(result.bundle.directory)},
        "registered": asdict(result.registered),
        "verdict": result.evidence.verdict,
        "reasons": list(result.evidence.reasons),
        "figures": dict(result.evidence.figures),
        "predictors": result.predictors,
        "requests": len(result.screened.records),
        "read": result.screened.read,
        "left_out": dict(result.screened.left_out),
        "lineage": result.tags,
        "resumed": result.resumed,
    }


def _settings(config: str, budget_s: float | None, seed: int | None) -> RetrainSettings:
    from steersman.agents.retrain.settings import load_retrain_settings

    settings = load_retrain_settings(config)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    if budget_s is not None:
        policy = settings.policy.model_copy(update={"budget_s": budget_s})
        settings = settings.model_copy(update={"policy": policy})
    return settings


class _Run:
    """One retraining with a bar for each stage, as often as it is called."""

    def __init__(
        self,
        settings: RetrainSettings,
        log: Path,
        since: float | None,
        out: Path,
        mlruns: Path,
        ray: str | None,
    ) -> None:
        self._settings, self._log, self._since = settings, log, since
        self._out, self._mlruns, self._ray = out, mlruns, ray

    def __call__(self) -> RetrainResult:
        from steersman.agents.registry import Registry
        from steersman.agents.retrain.plan import RetrainPlan
        from steersman.agents.retrain.retrain import retrain as run
        from steersman.cli.crew import crew
        from steersman.cli.train import stage_bars

        registry = Registry(self._mlruns, tracking_uri=os.environ.get(TRACKING_VARIABLE, ""))
        with crew(self._ray, self._settings.jobs) as jobs, stage_bars() as tell:
            settings = self._settings.model_copy(update={"jobs": jobs})
            plan = RetrainPlan(self._log, self._out, settings, self._since)

            def told(stage: str, share: float, note: str) -> None:
                tell(cast("Stage", stage), share, note)  # a bar for whatever it is called

            return run(plan, registry, progress=told)


def _print(result: RetrainResult, mlruns: Path) -> None:
    from steersman.cli.common import console

    screened = result.screened
    left = ", ".join(f"{count} with {why}" for why, count in screened.left_out.items())
    lines = [
        f"{len(screened.records)} sound requests of {screened.read} records"
        + (f"; left out: {left}" if left else ""),
        *(f"{name}: {reason}" for name, reason in result.predictors.items()),
        *result.evidence.reasons,
        f"verdict: {result.evidence.verdict.replace('_', ' ')}",
        f"challenger: bundle {result.bundle.version}, version {result.registered.version} of the "
        f"registered model, in {mlruns}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
