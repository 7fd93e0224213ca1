"""What drift does to predictions, and what learning online makes of it.

::

    python benchmarks/drift.py [--quick] [--seeds N] [--json FILE] [--draw DIRECTORY]

Models are fitted on the first 60 % of the bundled Azure chat trace and on simulated runs of the cluster.
Then three phases of traffic that they have not seen, at half of saturation: as it was; on hardware that
takes 1.4 times as long; and with longer prompts and shorter answers, at the load of the second
phase. Each course is played with nothing learning, with the bias corrector, and with refits too.
`--quick` takes one short course of the `demo` cluster; the full run takes some each of `mixed` and
`demo`, and its rows are named after the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from steersman.agents.fit.latency import fit_latency
from steersman.agents.fit.length import fit_length
from steersman.agents.refit.drift_figures import LATENCIES, Row, drift_drawing, drift_rows, play_drift
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import LatencyModel
from steersman.predictors.length import LengthModel
from steersman.traces.readers import load_trace

TRAIN_SHARE = 0.6


def main(
    quick: Annotated[bool, typer.Option(help="One short course.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Courses of each cluster, if not quick.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the errors into this directory.")] = None,
) -> None:
    """Measure and print."""
    rows: list[Row] = []
    for cluster in ("demo",) if quick else ("mixed", "demo"):
        rows += measure(cluster, draw, quick=quick, seeds=seeds, prefix="" if quick else f"{cluster}.")
    table = Table("name", "value", "lowest", "highest", "unit", "note")
    for row in rows:
        numbers = ["" if row[key] is None else f"{row[key]:.4g}" for key in ("value", "lo", "hi")]
        table.add_row(str(row["name"]), *numbers, str(row["unit"]), str(row["note"]))
    Console(width=140).print(table)
    if json is not None:
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def measure(cluster: str, draw: Path | None, *, quick: bool, seeds: int, prefix: str) -> list[Row]:
    """The rows of one cluster, their names after `prefix`.

    Args:
        draw: directory for drawings; None: none.
        quick: a short course instead of `seeds` long ones.
    """
    scenario, trace = load_scenario(cluster), load_trace("azure-chat")
    past, future = trace.split((TRAIN_SHARE, 1.0 - TRAIN_SHARE))
    length = LengthModel.from_bytes(fit_length(past, seed=0).onnx)
    runs, decisions = (6, 600) if quick else (18, 2_000)
    fitted = fit_latency(scenario, past, seed=0, length=length, runs=runs, decisions=decisions)
    played = play_drift(
        scenario,
        future,
        LatencyModel.from_bytes(fitted.onnx),
        length,
        requests=1_500 if quick else 4_000,
        min_outcomes=520 if quick else 1_000,
        seeds=range(1 if quick else seeds),
    )
    if draw is not None:
        draw.mkdir(parents=True, exist_ok=True)
        for target in (*LATENCIES, "output"):
            drawing = drift_drawing(played, target)
            (draw / f"{cluster}-{target}.svg").write_text(drawing, encoding="utf-8")
    return [{**row, "name": prefix + str(row["name"])} for row in drift_rows(played)]


if __name__ == "__main__":
    typer.run(main)
