"""`steersman evaluate predictors`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
