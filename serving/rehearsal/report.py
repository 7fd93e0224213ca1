"""The report of a rehearsal: what was trained, how it did over HTTP, and where everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.report import figures
from steersman.agents.report.page import Figure, Page, Section, Table
from steersman.serving.rehearsal.comparison import change, compare
from steersman.serving.replay_result import ReplayResult

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Training:
    """What the report says about how the models came to be."""

    summary: Sequence[str]
    """Sentences."""
    predictors: Sequence[tuple[str, str]]
    """Pairs of a figure's name and its value, for people."""
    curve: tuple[Values, Values]
    """Rounds and updates of training, and J over that of marginal cost on the tuning episodes."""
    ratios: Sequence[tuple[str, float, float, float]]
    """In the cluster model: comparison, J ratio, and its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Everything a report needs."""

    cluster: Sequence[Sequence[str]]
    """Per replica: id, profile, what it costs."""
    load: Sequence[str]
    """Sentences about the requests that were replayed."""
    results: Mapping[str, ReplayResult]
    """Per policy, the old one first."""
    training: Training
    places: Sequence[tuple[str, str]]
    """Pairs of a thing and where it is."""
    next_steps: Sequence[str]
    """Commands."""


def build(rehearsal: Rehearsal) -> Page:
    """Assemble the page."""
    old, *_, new = rehearsal.results
    moved = [
        (change(rehearsal.results, measure, old, new), f"{measure}, {new} against {old}")
        for measure in ("TTFT p50", "TTFT p99", "TPOT p99", "goodput")
    ]
    return Page(
        title=f"Rehearsal: {old} against {new}",
        subtitle="The same requests from a real trace, sent over HTTP through the router to emulated "
        "backends, once under each policy.",
        highlights=moved,
        sections=[
            _comparison(rehearsal),
            _latency(rehearsal.results),
            _balance(rehearsal),
            _training(rehearsal.training),
            Section(
                "Where everything is",
                tables=[Table(("what", "where"), rehearsal.places)],
                paragraphs=["How to go on:"],
                commands=rehearsal.next_steps,
            ),
        ],
    )


def _comparison(rehearsal: Rehearsal) -> Section:
    rows = compare(rehearsal.results)
    return Section(
        "Over HTTP",
        paragraphs=[
            *rehearsal.load,
            "One run under each policy: differences of a few per cent are noise. The paired comparison "
            "over seeds, with intervals, is under “Training”.",
        ],
        tables=[
            Table(rows.header, rows.rows, best=rows.best),
            Table(("replica", "profile", "iteration costs"), rehearsal.cluster, "The cluster."),
        ],
    )


def _latency(results: Mapping[str, ReplayResult]) -> Section:
    ttft = {name: result.ttft_s[result.ok] for name, result in results.items()}
    tpot = {name: result.tpot_s[result.ok] * 1e3 for name, result in results.items()}
    over_time = {name: _moving_p90(result) for name, result in results.items()}
    first = next(iter(results.values()))
    return Section(
        "Latency",
        figures=[
            Figure(
                figures.distribution(ttft, label="time to first token (s)"),
                "TTFT of all answered requests; further left is better.",
            ),
            Figure(
                figures.distribution(
                    tpot,
                    label="time per output token (ms)",
                    limit=float(np.median(first.tpot_slo_s)) * 1e3,
                    log=False,
                ),
                "TPOT of all answered requests, and its objective.",
            ),
            Figure(
                figures.curves(
                    over_time, x_label="time in the replay (s)", y_label="TTFT p90 (s)", log_y=True
                ),
                "TTFT p90 of the requests sent within 5 s before and after.",
            ),
        ],
    )


def _balance(rehearsal: Rehearsal) -> Section:
    replicas = sorted({name for r in rehearsal.results.values() for name in r.replica if name})
    shares = {
        name: [result.summary()["share"].get(replica, 0.0) for replica in replicas]
        for name, result in rehearsal.results.items()
    }
    return Section(
        "Who answered",
        figures=[
            Figure(
                figures.grouped_bars(replicas, shares, label="share of requests"),
                "Share of requests per replica. A good policy gives faster replicas more.",
            )
        ],
    )


def _training(training: Training) -> Section:
    drawn = []
    if len(training.curve[0]):
        drawn.append(
            Figure(
                figures.curves(
                    {"learned": training.curve},
                    x_label="training rounds and updates",
                    y_label="J over marginal cost's",
                ),
                "Cost J on the tuning episodes, relative to marginal cost; lower is better.",
            )
        )
    if training.ratios:
        drawn.append(
            Figure(
                figures.intervals(training.ratios, label="J ratio (95 % interval)", reference=1.0),
                "In the cluster model, paired over held-out seeds; below 1, learned is better.",
            )
        )
    return Section(
        "Training",
        paragraphs=training.summary,
        tables=[Table(("predictor", "held-out"), training.predictors)],
        figures=drawn,
    )


def _moving_p90(result: ReplayResult, window_s: float = 5.0) -> tuple[Values, Values]:
    known = result.ok & np.isfinite(result.ttft_s)
    sent_s, ttft_s = result.scheduled_s[known], result.ttft_s[known]
    if not len(sent_s):
        return np.empty(0), np.empty(0)
    at_s = np.arange(0.0, sent_s.max() + 1.0, 1.0)
    near = [ttft_s[np.abs(sent_s - t) <= window_s] for t in at_s]
    p90 = np.array([np.quantile(values, 0.9) if len(values) else np.nan for values in near])
    return at_s, p90
