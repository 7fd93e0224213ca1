"""`steersman evaluate tune`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from steersman.cli.choices import DEFAULT_SCENARIOS, Scenarios
from steersman.cli.crew import Ray, crew


def tune(
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")],
    scenario: Scenarios = DEFAULT_SCENARIOS,
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
