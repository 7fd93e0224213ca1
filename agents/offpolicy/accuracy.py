"""Predicted against realised: both predictors on the same requests, on the replicas that served them.

The challenger says of every request how long it would take where the champion sent it, so its
predictions meet reality without serving anything. Its p90 is widened here as a router would have widened
it (`predictors/width.py`): from the outcomes known at each time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.statistics import RESAMPLES, Ratio
from steersman.agents.offpolicy.estimators import BLOCKS
from steersman.agents.offpolicy.matched import Matched
from steersman.agents.refit.judge import pinball_losses
from steersman.agents.refit.outcomes import teaches
from steersman.predictors.drift import LEAST_MEASURED
from steersman.predictors.latency import LATENCY_OUTPUTS
from steersman.predictors.width import Widths
from steersman.traces.outcome_record import OutcomeRecord

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST_OUTCOMES = 30
"""Of fewer no figure is given."""


@dataclass(frozen=True)
class Quality:
    """How good a predictor was."""

    mdape: float
    """Median of |p50 - actual| / actual, of what is long enough to count (EVALUATION, "Prediction")."""
    within_p50: float
    """Share of outcomes at or below p50; 0.5 is right."""
    within_p90: float
    """0.9 is right."""


@dataclass(frozen=True)
class Accuracy:
    """One quantity on n outcomes."""

    target: str
    """`ttft`, `tpot` or `output`."""
    outcomes: int
    champion: Quality
    challenger: Quality
    loss: Ratio
    """Pinball loss of p50 and p90 on logs, challenger's over champion's; under 1 the challenger's
    predictions are better. Bootstrapped over blocks of neighbours."""
    actual: Float64
    """(n,)"""
    predicted: Float64
    """(n, 2): the challenger's p50 and p90."""


@dataclass(frozen=True)
class _Columns:
    actual: Float64
    champion: Float64
    """(n, 2): p50, p90"""
    challenger: Float64


def accuracy(matched: Matched, *, agreed: bool = False, seed: int = 0) -> tuple[Accuracy, ...]:
    """Of TTFT from dispatch, TPOT and output tokens, where there are enough outcomes.

    Args:
        agreed: only where both choose the same, so that what came of it came of both choices.
    """
    chosen = np.array([teaches(record) for record in matched.records], dtype=np.bool_)
    widened = _widened(matched, chosen)
    if agreed:
        chosen = chosen & matched.agrees
    rows = np.flatnonzero(chosen)
    found = []
    for target, columns in _columns(matched, widened, rows).items():
        known = np.isfinite(columns.actual) & (columns.actual > 0.0)
        known &= np.isfinite(columns.champion).all(axis=1) & (columns.champion > 0.0).all(axis=1)
        known &= np.isfinite(columns.challenger).all(axis=1)
        if int(known.sum()) >= LEAST_OUTCOMES:
            found.append(_compare(target, columns, known, seed))
    return tuple(found)


def _columns(matched: Matched, widened: Float64, rows: NDArray[np.intp]) -> dict[str, _Columns]:
    records = [matched.records[row] for row in rows.tolist()]
    opinions = [matched.opinions[row] for row in rows.tolist()]

    def of(*names: str) -> Float64:
        values = [[getattr(record, name) for name in names] for record in records]
        return np.array(values, dtype=np.float64).reshape(len(rows), len(names))

    own = widened[rows]
    lengths = np.array([(said.output_p50, said.output_p90) for said in opinions], dtype=np.float64)
    output = np.array([record.output_tokens or 0 for record in records], dtype=np.float64)
    ttft_s = np.array([_ttft_s(record) for record in records])
    return {
        "ttft": _Columns(ttft_s, of("ttft_p50_s", "ttft_p90_s"), own[:, :2]),
        "tpot": _Columns(of("tpot_s")[:, 0], of("tpot_p50_s", "tpot_p90_s"), own[:, 2:]),
        "output": _Columns(output, of("output_p50", "output_p90"), lengths.reshape(len(rows), 2)),
    }


def _compare(target: str, columns: _Columns, known: Bools, seed: int) -> Accuracy:
    actual = columns.actual[known]
    champion, challenger = columns.champion[known], columns.challenger[known]
    new, old = (pinball_losses(np.log(actual), np.log(each)) for each in (challenger, champion))
    least = LEAST_MEASURED[target]
    return Accuracy(
        target=target,
        outcomes=len(actual),
        champion=_quality(actual, champion, least),
        challenger=_quality(actual, challenger, least),
        loss=_ratio(new, old, seed),
        actual=actual,
        predicted=challenger,
    )


def _quality(actual: Float64, quantiles: Float64, least: float) -> Quality:
    counted = actual >= least
    error = np.abs(quantiles[counted, 0] - actual[counted]) / actual[counted]
    return Quality(
        mdape=float(np.median(error)) if counted.any() else math.nan,
        within_p50=float((actual <= quantiles[:, 0]).mean()),
        within_p90=float((actual <= quantiles[:, 1]).mean()),
    )


def _ratio(a: Float64, b: Float64, seed: int) -> Ratio:
    """Sum of a over sum of b, with its interval over blocks of neighbours."""
    parts = np.array_split(np.arange(len(a)), min(BLOCKS, len(a)))
    sums = np.array([(a[part].sum(), b[part].sum()) for part in parts])
    rng = np.random.default_rng(seed)
    drawn = sums[rng.integers(len(parts), size=(RESAMPLES, len(parts)))].sum(axis=1)
    lo, hi = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-12), (0.025, 0.975))
    return Ratio(float(a.sum() / max(b.sum(), 1e-12)), float(lo), float(hi))


def _ttft_s(record: OutcomeRecord) -> float:
    """From dispatch, which is what is predicted."""
    return record.ttft_s - record.queued_s


def _widened(matched: Matched, teaching: Bools) -> Float64:
    """The challenger's predictions for what was done, (n, 4), with p90 as a router would serve it."""
    modelled = np.array([said.champions for said in matched.opinions], dtype=np.float64)
    served = modelled.reshape(len(matched), len(LATENCY_OUTPUTS)).copy()
    widths, numbers = Widths(), count()
    news: list[tuple[float, int, Callable[[], None]]] = []
    for i in sorted(range(len(matched)), key=lambda i: matched.records[i].decided_at_s):
        record, own = matched.records[i], served[i].copy()
        now_s, ttft_s = record.decided_at_s, _ttft_s(record)
        if not (math.isfinite(now_s) and np.isfinite(own).all()):
            continue
        while news and news[0][0] <= now_s:
            heapq.heappop(news)[2]()
        served[i] = widths.apply(now_s, own)
        if teaching[i] and ttft_s > 0.0:
            awaited = widths.expect(now_s, own)
            first: Callable[[], None] = partial(awaited.first_token, ttft_s)
            heapq.heappush(news, (now_s + ttft_s, next(numbers), first))
            if record.tpot_s > 0.0:
                ends_s = now_s + record.e2e_s - record.queued_s
                last: Callable[[], None] = partial(awaited.finish, record.tpot_s)
                heapq.heappush(news, (ends_s, next(numbers), last))
    return served
