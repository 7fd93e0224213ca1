"""Fitting a model on logged outcomes and judging it on the newest of them. Writes nothing.

After a change of the world it is not known whether what came before still teaches, and not every
change is noticed: so one candidate is fitted on the whole window, one on its newest quarter and one on
what came after the change, and the held-out slice, which is then taken from after the change, decides
between them and the model that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_rows
from steersman.agents.fit.length import fit_length_rows
from steersman.agents.fit.sampling import LatencySamples
from steersman.agents.refit.judge import Part, Verdict, compare
from steersman.agents.refit.outcomes import LoggedOutcomes
from steersman.predictors.drift import LEAST_MEASURED
from steersman.predictors.latency import LATENCY_INDEX, LatencyModel, LatencyPredictor, latency_rows
from steersman.predictors.length import LengthModel, LengthPredictor

HELD_SHARE = 0.2
HELD_SHARE_SINCE = 0.4
"""Of what ended after a change."""
MOST_HELD = 1_000
LEAST_HELD = 200
LEAST_TRAIN = 300
LEAST_LATENCY_TRAIN = 1_500
"""For a latency model of a part alone: on fewer it learns the moment by heart."""
GROUPS = 30
"""Stretches of time into which what is learned from is cut for cross-validation."""

MOST_LOG_SPEED = 0.7
"""Log of the largest factor of other speeds that a log is taken to stand for: twice or half."""
_TIMES = ("ttft_s", "tpot_s", "mean_ttft_s", "mean_tpot_s")
_LOG_BIASES = ("log_bias_ttft", "log_bias_tpot")

Attempt = tuple[FittedModel | None, Verdict]
"""None where there was too little to learn from."""


def refit_latency(
    outcomes: LoggedOutcomes,
    serves: LatencyPredictor,
    *,
    window: int,
    since_s: float | None,
    seed: int,
) -> Attempt:
    """A new latency model against the one that serves, on streamed outcomes.

    Args:
        window: most outcomes to learn from; those of busy replicas stay longest (`window.py`).
        since_s: when the world changed, on the clock of `outcomes.ended_s`; None: it did not.
        seed: of LightGBM.
    """

    def fit(train: LoggedOutcomes) -> FittedModel:
        rows = latency_rows(train.replicas[:, None], train.requests)[:, 0]
        unknown = np.full(len(train), np.nan)
        samples = LatencySamples(rows, train.ttft_s, np.nan_to_num(train.tpot_s), unknown)
        groups = np.arange(len(train)) * GROUPS // len(train)
        return fit_rows(at_other_speeds(samples, seed), np.tile(groups, 2), seed=seed)

    def judge(fitted: FittedModel, held: LoggedOutcomes) -> Verdict:
        old, new = (
            model.predict(held.replicas[:, None], held.requests)[:, 0]
            for model in (serves, LatencyModel.from_bytes(fitted.onnx))
        )
        return compare(
            {
                "ttft": Part(held.ttft_s, old[:, :2], new[:, :2], LEAST_MEASURED["ttft"]),
                "tpot": Part(held.tpot_s, old[:, 2:], new[:, 2:], LEAST_MEASURED["tpot"]),
            }
        )

    streamed = outcomes.streamed
    held_out = _held_out(streamed, since_s)
    if held_out < LEAST_HELD or len(streamed) - held_out < LEAST_TRAIN:
        return None, _too_few(len(streamed), "streamed outcomes")
    train, held = streamed.windowed(window, held_out)
    return _best(train, held, since_s, LEAST_LATENCY_TRAIN, fit, judge)


def refit_length(
    outcomes: LoggedOutcomes,
    serves: LengthPredictor,
    *,
    window: int,
    since_s: float | None,
    seed: int,
) -> Attempt:
    """A new output-length model against the one that serves, on the newest outcomes."""

    def fit(train: LoggedOutcomes) -> FittedModel:
        return fit_length_rows(train.length_rows, train.output_tokens, seed=seed, source="the log")

    def judge(fitted: FittedModel, held: LoggedOutcomes) -> Verdict:
        old, new = (
            model.predict(held.length_rows)[:, :2]
            for model in (serves, LengthModel.from_bytes(fitted.onnx))
        )
        return compare({"output": Part(held.output_tokens, old, new, LEAST_MEASURED["output"])})

    held_out = _held_out(outcomes, since_s)
    cut = len(outcomes) - held_out
    if held_out < LEAST_HELD or cut < LEAST_TRAIN:
        return None, _too_few(len(outcomes), "outcomes")
    train = outcomes.take(np.arange(max(cut - window, 0), cut))
    held = outcomes.take(np.arange(cut, len(outcomes)))
    return _best(train, held, since_s, LEAST_TRAIN, fit, judge)


def at_other_speeds(samples: LatencySamples, seed: int) -> LatencySamples:
    """The samples, and once more as they would have been on hardware of another speed.

    A log rarely holds a change of speed, and a forest fitted on it would make nothing of the next one:
    it would take the bias corrector's news for noise. But what a factor on all times does is known: it
    is on the latencies, on their recent means and, since the corrector follows, on the estimates.
    """
    rng = np.random.default_rng(seed)
    log_factor = rng.uniform(-MOST_LOG_SPEED, MOST_LOG_SPEED, len(samples)).astype(np.float32)
    factor = np.exp(log_factor)
    rows = samples.rows.copy()
    for name in _TIMES:
        rows[:, LATENCY_INDEX[name]] *= factor
    for name in _LOG_BIASES:
        rows[:, LATENCY_INDEX[name]] += log_factor
    return LatencySamples(
        np.concatenate((samples.rows, rows)),
        np.concatenate((samples.ttft_s, samples.ttft_s * factor)),
        np.concatenate((samples.tpot_s, samples.tpot_s * factor)),
        np.tile(samples.load, 2),
    )


def _best(
    train: LoggedOutcomes,
    held: LoggedOutcomes,
    since_s: float | None,
    least: int,
    fit: Callable[[LoggedOutcomes], FittedModel],
    judge: Callable[[FittedModel, LoggedOutcomes], Verdict],
) -> Attempt:
    """The better of the candidates; `least`: outcomes for one of a part."""
    candidates = [train]
    for after_s in (since_s, float(np.quantile(train.ended_s, 0.75))):
        after = np.flatnonzero(train.ended_s >= (np.inf if after_s is None else after_s))
        if least <= len(after) < len(train):
            candidates.append(train.take(after))
    attempts = [(fitted, judge(fitted, held)) for fitted in map(fit, candidates)]
    return max(attempts, key=lambda made: (made[1].better, _gain(made[1].figures)))


def _gain(figures: Mapping[str, float]) -> float:
    return figures.get("gain", -np.inf)


def _held_out(outcomes: LoggedOutcomes, since_s: float | None) -> int:
    share, count = HELD_SHARE, len(outcomes)
    if since_s is not None:
        share, count = HELD_SHARE_SINCE, int(np.sum(outcomes.ended_s >= since_s))
    return min(int(share * count), MOST_HELD)


def _too_few(known: int, what: str) -> Verdict:
    return Verdict(False, f"too few: {known} {what}", {})
