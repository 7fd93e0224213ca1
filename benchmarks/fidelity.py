"""How close the cluster model is to reality and to Vidur (EVALUATION, "Simulator against reality").

::

    python benchmarks/fidelity.py [--quick] [--json FILE] [--plots DIR]

Every reference is replayed by `steersman.agents.fidelity`; docs/fidelity.md explains how. Errors are
|ours - reference| / reference of a quantile of the distribution, ours averaged over ten runs whose costs
are perturbed by 0.1 % (`--quick`: two), and the figures are medians over runs. The JSON holds the
figures, then every run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from steersman.agents.fidelity import (
    aibrix,
    curves,
    llama2_70b,
    real_vllm,
    servers,
    vidur,
    vidur_engine,
)
from steersman.agents.fidelity.comparison import Comparison
from steersman.agents.report import figures as draw

DATA = Path(__file__).parent / "data" / "fidelity"
FIGURES = (
    ("vidur.ttft_p50_error", "vidur", "ttft_p50", "predicted"),
    ("vidur.ttft_p99_error", "vidur", "ttft_p99", "predicted"),
    ("vidur.e2e_p50_error", "vidur", "e2e_p50", "predicted"),
    ("vidur.e2e_p99_error", "vidur", "e2e_p99", "predicted"),
    ("vidur.saturated_ttft_p50_error", "vidur", "ttft_p50", "saturated"),
    ("vidur.saturated_e2e_p50_error", "vidur", "e2e_p50", "saturated"),
    ("vidur_engine.ttft_p50_error", "vidur_engine", "ttft_p50", "predicted"),
    ("vidur_engine.e2e_p50_error", "vidur_engine", "e2e_p50", "predicted"),
    ("vidur_engine.e2e_p99_error", "vidur_engine", "e2e_p99", "predicted"),
    ("real_vllm.ttft_p50_error", "real_vllm", "ttft_p50", "predicted"),
    ("real_vllm.tpot_p50_error", "real_vllm", "tpot_p50", "predicted"),
    ("real_vllm.e2e_p50_error", "real_vllm", "e2e_p50", "predicted"),
    ("measured.ttft_shape_error", "measured", "ttft_mean", "predicted"),
    ("measured.tpot_shape_error", "measured", "tpot_mean", "predicted"),
    ("server_32b.e2e_error", "server_32b", "e2e_mean", "fitted"),
    ("server_32b.tpot_error", "server_32b", "tpot_mean", "fitted"),
    ("llama2_70b.prompt_shape_error", "llama2_70b", "prompt", "predicted"),
    ("llama2_70b.token_shape_error", "llama2_70b", "token", "predicted"),
)
"""Name, reference, figure of a run, group of runs."""

Row = dict[str, str | float | None]
console = Console(width=120)


def main(
    quick: Annotated[bool, typer.Option(help="Two perturbed runs instead of ten.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw SVG figures into this folder.")] = None,
) -> None:
    """Measure and print."""
    runs = 2 if quick else 10
    started = time.perf_counter()
    vidur_runs = vidur.load_runs(DATA / "vidur.parquet")
    found = [
        *vidur.compare(vidur_runs, perturbed=runs),
        *vidur_engine.compare(vidur_runs, perturbed=1 if quick else runs),
        *real_vllm.compare(real_vllm.load_runs(DATA / "real_vllm.csv.gz"), perturbed=runs),
        *curves.compare(
            curves.load_points(DATA / "measured_curves.csv"), perturbed=1 if quick else runs
        ),
        *servers.compare(servers.load_points(DATA / "measured_32b.csv")),
        *llama2_70b.compare(llama2_70b.load_table(DATA / "llama2_70b.csv")),
        *aibrix.compare(aibrix.load_runs(DATA / "aibrix.csv.gz"), perturbed=1 if quick else runs),
    ]
    rows = [_figure(found, *figure) for figure in FIGURES]
    share, pairs, wrong = aibrix.concordant_share([c for c in found if c.reference == "aibrix"])
    rows.append(
        _row("aibrix.concordant_share", share, f"{pairs} pairs; not: {', '.join(wrong) or 'none'}")
    )
    for reference in dict.fromkeys(c.reference for c in found):
        _print_runs([c for c in found if c.reference == reference])
    _print_figures(rows)
    console.print(f"{time.perf_counter() - started:.0f} s")
    if json is not None:
        rows += [_run_row(c) for c in found]
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    if plots is not None:
        _draw(found, plots)


def _figure(found: list[Comparison], name: str, reference: str, metric: str, group: str) -> Row:
    """Median over runs, with the middle 95 % of a bootstrap of that median."""
    members = [c for c in found if (c.reference, c.metric, c.group) == (reference, metric, group)]
    errors = np.array([abs(c.error) for c in members])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(errors, (2000, len(errors))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    worst = max(members, key=lambda c: abs(c.error))
    note = f"{len(errors)} runs; worst {worst.run} {worst.error:+.1%}"
    return _row(name, float(np.median(errors)), note, float(low), float(high))


def _row(name: str, value: float, note: str, low: float | None = None, high: float | None = None) -> Row:
    return {"name": name, "value": value, "lo": low, "hi": high, "unit": "fraction", "note": note}


def _run_row(c: Comparison) -> Row:
    note = f"{c.group}; theirs {c.theirs:.5g} {c.unit}, ours {c.ours:.5g} {c.unit}"
    return _row(f"run.{c.reference}.{c.run}.{c.metric}", c.error, note)


def _print_figures(rows: list[Row]) -> None:
    table = Table(title="Cluster model against references")
    for heading in ("figure", "value", "95 %", "note"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        interval = "" if row["lo"] is None else f"{row['lo']:.3f} to {row['hi']:.3f}"
        table.add_row(str(row["name"]), f"{row['value']:.3f}", interval, str(row["note"]))
    console.print(table)


def _print_runs(members: list[Comparison]) -> None:
    """One line a run: signed error of each figure."""
    metrics = list(dict.fromkeys(c.metric for c in members))
    table = Table(title=f"{members[0].reference}: ours over theirs, less one")
    for heading in ("group", "run", *metrics):
        table.add_column(heading, overflow="fold")
    for group, run in dict.fromkeys((c.group, c.run) for c in members):
        errors = {c.metric: c for c in members if (c.group, c.run) == (group, run)}
        table.add_row(group, run, *(f"{errors[m].error:+.1%}" for m in metrics))
    console.print(table)


def _draw(found: list[Comparison], folder: Path) -> None:
    """The figures of docs/fidelity.md."""
    folder.mkdir(parents=True, exist_ok=True)
    for reference in ("vidur", "vidur_engine", "real_vllm"):
        metrics = ("ttft_p50", "e2e_p50", "e2e_p99")
        names = list(dict.fromkeys(c.run for c in found if c.reference == reference))
        series = {m: _errors_of(found, reference, names, m) for m in metrics}
        labels = [_short(name) for name in names]
        svg = draw.error_bars(labels, series, label="ours over theirs, less one (%)")
        (folder / f"{reference}.svg").write_text(svg, encoding="utf-8")
    for metric in ("ttft_mean", "tpot_mean"):
        members = [c for c in found if c.metric == metric and c.run.startswith("h200-tp4")]
        (folder / f"curves_{metric}.svg").write_text(_curve(members, metric), encoding="utf-8")


def _errors_of(
    found: list[Comparison], reference: str, names: Sequence[str], metric: str
) -> list[float]:
    """In per cent; of what was predicted where a run is split, else of the whole."""
    errors = {}
    for c in found:
        if (
            c.reference == reference
            and c.metric == metric
            and (c.group != "fitted" or c.run not in errors)
        ):
            errors[c.run] = 100.0 * c.error
    return [errors[name] for name in names]


def _curve(members: list[Comparison], metric: str) -> str:
    """Measured and predicted against concurrency, per prompt and output length."""
    series = {}
    for lengths in dict.fromkeys(c.run.split()[1] for c in members):
        points = sorted(
            (int(c.run.split()[2][1:]), c.theirs, c.ours) for c in members if c.run.split()[1] == lengths
        )
        x, theirs, ours = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        series[f"{lengths} measured"] = (x, 1000.0 * theirs)
        series[f"{lengths} model"] = (x, 1000.0 * ours)
    return draw.curves(series, x_label="concurrency", y_label=f"{metric} (ms)", log_y=True)


def _short(name: str) -> str:
    return name.replace("_conv1000", "").replace("_conv4000", "").replace("round_robin", "rr")


if __name__ == "__main__":
    typer.run(main)
