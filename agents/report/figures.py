"""SVG figures for reports: distributions, shares, curves, intervals.

matplotlib's object interface only: no pyplot, so no global state, and no display is needed. Text stays
text in the SVG, so that a reader can search and copy it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from steersman.agents.evaluate.statistics import Ratio

Values = NDArray[np.float64]

# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
QUANTILES_DRAWN = 400


def distribution(
    series: Mapping[str, Values], *, label: str, limit: float | None = None, log: bool = True
) -> str:
    """Empirical cumulative distributions, one line each; `limit` draws a vertical objective."""

    def draw(axes: Axes) -> None:
        share = np.linspace(0.0, 1.0, QUANTILES_DRAWN)
        for (name, values), colour in zip(series.items(), _colours(), strict=False):
            known = values[np.isfinite(values)]
            if known.size:
                axes.plot(np.quantile(known, share), share, label=name, color=colour, linewidth=1.8)
        if limit is not None:
            axes.axvline(limit, color="#888888", linestyle="--", linewidth=1.0, label="objective")
        if log:
            axes.set_xscale("log")
            _plain_numbers(axes.xaxis)
        axes.set_xlabel(label)
        axes.set_ylabel("share of requests")
        axes.set_ylim(0.0, 1.005)
        axes.legend(loc="lower right")

    return _svg(draw)


def grouped_bars(groups: Sequence[str], series: Mapping[str, Sequence[float]], *, label: str) -> str:
    """One group of bars per name in `groups`, one bar per series."""

    def draw(axes: Axes) -> None:
        width = 0.8 / max(len(series), 1)
        places = np.arange(len(groups))
        for i, ((name, heights), colour) in enumerate(zip(series.items(), _colours(), strict=False)):
            offset = (i - (len(series) - 1) / 2) * width
            axes.bar(places + offset, heights, width * 0.94, label=name, color=colour)
        axes.set_xticks(places, groups)
        axes.set_ylabel(label)
        axes.grid(visible=False, axis="x")
        # Room above the tallest bar, so that the legend covers nothing.
        tallest = max((max(heights, default=0.0) for heights in series.values()), default=0.0)
        axes.set_ylim(0.0, tallest * 1.25 or 1.0)
        axes.legend(loc="upper right", ncols=max(len(series), 1))

    return _svg(draw)


def error_bars(names: Sequence[str], series: Mapping[str, Sequence[float]], *, label: str) -> str:
    """Horizontal bars from zero, one group per name from top to bottom, one bar per series."""

    def draw(axes: Axes) -> None:
        height = 0.8 / max(len(series), 1)
        places = np.arange(len(names))[::-1]
        for i, ((name, values), colour) in enumerate(zip(series.items(), _colours(), strict=False)):
            offset = ((len(series) - 1) / 2 - i) * height
            axes.barh(places + offset, values, height * 0.94, label=name, color=colour)
        axes.axvline(0.0, color="#888888", linewidth=1.0)
        axes.set_yticks(places, names)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)
        axes.legend(loc="lower right")

    return _svg(draw, width=7.0, height=1.2 + 0.34 * len(names))


def curves(
    series: Mapping[str, tuple[Values, Values]],
    *,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    lead: bool = False,
) -> str:
    """Lines y over x, each series an (x, y) pair; `lead` draws the first thick and the others dashed."""

    def draw(axes: Axes) -> None:
        for i, ((name, (x, y)), colour) in enumerate(zip(series.items(), _colours(), strict=False)):
            style = DASHES[i % len(DASHES)] if lead else "-"
            axes.plot(
                x,
                y,
                label=name,
                color=colour,
                linestyle=style,
                linewidth=2.6 if lead and i == 0 else 1.6,
                marker="o" if len(x) < 30 else None,
                markersize=3.5,
            )
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log_y:
            axes.set_yscale("log")
            _plain_numbers(axes.yaxis)
        if lead:  # many lines leave no free corner
            axes.figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        elif len(series) > 1:
            axes.legend()

    return _svg(draw, height=4.2 if lead else 3.5)


def predicted_against_actual(predicted: Values, actual: Values, *, quantity: str, unit: str) -> str:
    """Medians of what happened over medians of what was predicted; on the diagonal they agree."""

    def draw(axes: Axes) -> None:
        ends = (min(predicted.min(), actual.min()), max(predicted.max(), actual.max()))
        axes.plot(ends, ends, color="#888888", linestyle="--", linewidth=1.0, label="as predicted")
        axes.plot(
            predicted, actual, color=COLOURS[0], marker="o", markersize=4, linewidth=1.6, label="median"
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
        axes.set_xlabel(f"predicted p50 of {quantity}, {unit}")
        axes.set_ylabel(f"actual {quantity}, {unit}")
        axes.legend(loc="upper left")

    return _svg(draw, width=4.6, height=4.2)


def coverage_bars(shares: Mapping[str, float], *, label: str, wanted: float) -> str:
    """The share of cases within a predicted quantile, for each part, and what it should be."""

    def draw(axes: Axes) -> None:
        places = np.arange(len(shares))
        axes.bar(places, list(shares.values()), 0.7, color=COLOURS[0])
        axes.axhline(wanted, color=COLOURS[1], linestyle="--", linewidth=1.2)
        axes.set_xticks(places, list(shares))
        axes.grid(visible=False, axis="x")
        axes.set_ylim(min(0.5, *shares.values()), 1.0)
        axes.set_xlabel(label)
        axes.set_ylabel("share within p90")

    return _svg(draw)


def ends(ratio: Ratio) -> tuple[float, float, float]:
    """As `intervals` wants it: value, low, high."""
    return ratio.value, ratio.lo, ratio.hi


def intervals(rows: Sequence[tuple[str, float, float, float]], *, label: str, reference: float) -> str:
    """Points with their intervals: (name, value, low, high) per row, and a reference line."""

    def draw(axes: Axes) -> None:
        places = np.arange(len(rows))[::-1]
        for place, (_, value, low, high) in zip(places, rows, strict=True):
            colour = COLOURS[2] if high < reference else COLOURS[1] if low > reference else COLOURS[6]
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2)
            axes.plot([value], [place], "o", color=colour)
        axes.axvline(reference, color="#888888", linestyle="--", linewidth=1.0)
        axes.set_yticks(places, [name for name, *_ in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel(label)

    return _svg(draw, height=1.2 + 0.38 * len(rows))


def _plain_numbers(axis: Axis) -> None:
    """0.2 instead of 2 × 10⁻¹, and few enough labels not to run into each other."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axis.get_view_interval()
    if high < 30 * low:  # less than about a decade and a half: label between the powers of ten too
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_minor_formatter(NullFormatter())


def _colours() -> Sequence[str]:
    return COLOURS * 4


def _svg(draw: Callable[[Axes], None], *, width: float = 5.6, height: float = 3.5) -> str:
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas.add_subplot())
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
