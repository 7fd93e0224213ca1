"""How well output lengths and further turns are foreseen (EVALUATION, "Prediction"): the figures.

Every trace is split by time and judged as `agents/fit/length.py` does it. Requests with text are played
as a router would meet them: features are read, answers end, words and tenants are learned from.
"""

from __future__ import annotations

import gzip
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.stats import kendalltau

from steersman.agents.fit.length import SPLIT, fit_length, judged
from steersman.agents.fit.length_forests import LEVELS, grow, pinball
from steersman.env.bulk import trace_length_features
from steersman.predictors.features import LENGTH_FEATURES, length_features
from steersman.predictors.past import Past
from steersman.predictors.remaining import remaining
from steersman.predictors.sessions import SessionHistory
from steersman.predictors.text import text_features
from steersman.predictors.tokens import CalibratedCounter
from steersman.predictors.wording import Wording
from steersman.traces.readers import load_trace
from steersman.traces.trace import Trace

Values = NDArray[np.float64]

SERVEGEN = ("m-large", "m-small", "deepseek-r1")
PRODUCED = (50.0, 100.0, 200.0, 400.0)
"""Output tokens after which what remains is judged."""
PAUSE_S = 120.0
"""Between the starts of two agent sessions, and two prompts of a text."""
_USUAL = LENGTH_FEATURES.index("tenant_long_p50")


def length_figures(data: Path, *, seeds: int) -> dict[str, list[float]]:
    """All figures by name, one value per seed where there is chance in them and one otherwise.

    Args:
        data: `benchmarks/data/lengths`.
    """
    figures: dict[str, list[float]] = defaultdict(list)
    azure = load_trace("azure-chat")
    start_s = time.perf_counter()
    metrics = fit_length(azure, seed=0).metrics
    figures["length.fit_s"].append(time.perf_counter() - start_s)
    _take(figures, "azure", metrics)
    figures["length.pinball_ratio_azure"].append(metrics["pinball_ratio_constant"])
    for workload in SERVEGEN:
        metrics = fit_length(load_trace(_only(data, f"servegen_{workload}_*")), seed=0).metrics
        _take(figures, workload, metrics)
        figures[f"length.pinball_ratio_servegen.{workload}"].append(metrics["pinball_ratio_rolling"])
    each = [figures[f"length.pinball_ratio_servegen.{workload}"] for workload in SERVEGEN]
    figures["length.pinball_ratio_servegen"] = np.mean(each, axis=0).tolist()
    for name, file in (("sharegpt", "sharegpt.csv.gz"), ("mooncake", "mooncake_sessions.csv.gz")):
        metrics = fit_length(load_trace(data / file), seed=0).metrics
        _take(figures, name, metrics)
        figures[f"length.pinball_ratio_{name}"].append(metrics["pinball_ratio_constant"])
    for name, value in remaining_error(azure).items():
        figures[f"length.remaining_ratio_{name}"].append(value)
    prompts = read_prompts(data / "arena_hard.jsonl.gz")
    sessions = load_trace(data / "agent_sessions.jsonl.gz")
    for seed in range(seeds):
        for name, value in judge_text(prompts, seed).items():
            figures[f"length.{name}"].append(value)
        for name, value in turns_error(sessions, seed).items():
            figures[f"turns.{name}"].append(value)
    return dict(figures)


class Prompt(NamedTuple):
    """A prompt, and how many tokens each model answered."""

    text: str
    output_tokens: dict[str, int]


def read_prompts(path: Path) -> list[Prompt]:
    """JSON lines, compressed: `prompt`, `output_tokens` by model."""
    with gzip.open(path) as lines:
        return [Prompt(row["prompt"], row["output_tokens"]) for row in map(orjson.loads, lines)]


def judge_text(prompts: list[Prompt], seed: int) -> dict[str, float]:
    """Prompts in random order, each asked of every model at once: none learns from another's answer.

    `kendall_tau_text` is the mean over the models of tau-b within each.
    """
    past, wording, counter = Past(), Wording(), CalibratedCounter()
    rows, outputs, models = [], [], []
    for number, which in enumerate(np.random.default_rng(seed).permutation(len(prompts)).tolist()):
        prompt = prompts[which]
        ended = []
        for model, tokens in prompt.output_tokens.items():
            text = text_features(
                {"model": model, "messages": [{"role": "user", "content": prompt.text}]}
            )
            request = text.request(
                request_id=f"{model}-{number}",
                arrival_s=PAUSE_S * number,
                input_tokens=counter.count(model, text),
                wording=wording.score(text.words),
            )
            rows.append(length_features(request, past.begin(request)))
            outputs.append(float(tokens))
            models.append(model)
            ended.append((request, text.words, tokens, float(rows[-1][_USUAL])))
        for request, words, tokens, usual in ended:
            past.end(request, tokens, None)
            wording.learn(words, tokens, usual)
    table, actual = np.stack(rows), np.array(outputs)
    # Between prompts, not within one.
    first, second = (int(share * len(prompts)) * len(prompts[0].output_tokens) for share in SPLIT)
    made = grow(table, actual, first, second, seed=seed)
    metrics = judged(made, table[second:], actual[second:], actual[:second])
    rank, asked = made.predict(table[second:])[:, 2], np.array(models[second:])
    taus = [
        float(kendalltau(rank[asked == model], actual[second:][asked == model]).statistic)
        for model in dict.fromkeys(models)
    ]
    return {
        "kendall_tau_text": float(np.mean(taus)),
        "pinball_ratio_text_constant": metrics["pinball_ratio_constant"],
        "pinball_ratio_text_rolling": metrics["pinball_ratio_rolling"],
        "coverage_p90.text": metrics["coverage_p90"],
    }


def remaining_error(trace: Trace) -> dict[str, float]:
    """Pinball loss of what is still to come, over that of a prediction that is not updated, held out.

    The latter says p50 - produced and p90 - produced, at least one token.
    """
    known = trace.output_tokens >= 1
    rows, actual = trace_length_features(trace)[known], trace.output_tokens[known].astype(np.float64)
    first, second = (int(share * len(rows)) for share in SPLIT)
    answers = grow(rows, actual, first, second, seed=0).predict(rows[second:])
    held = np.maximum.accumulate(np.maximum(answers[:, :2], 1.0), axis=1)
    ratios = {}
    for produced in PRODUCED:
        going = actual[second:] > produced
        left = actual[second:][going] - produced
        told = np.array([remaining(p50, p90, produced) for p50, p90 in held[going].tolist()])
        kept = np.maximum(held[going] - produced, 1.0)
        ratios[f"{produced:.0f}"] = _loss(left, told) / _loss(left, kept)
    return ratios


def turns_error(trace: Trace, seed: int) -> dict[str, float]:
    """Expected further turns of agent sessions, in the second half of the sessions in random order.

    The constant is the mean over the turns of the first half; `by_agent`, that of the same agent's.
    """
    order = np.random.default_rng(seed).permutation(len(trace.sessions))
    place = np.argsort(order)[trace.session]  # of each row's session in the order
    begun_s = trace.arrival_s[np.unique(trace.session, return_index=True)[1]]
    at_s = PAUSE_S * place + trace.arrival_s - begun_s[trace.session]
    history, tenants = SessionHistory(), trace.tenant
    turn, expected = np.zeros(len(trace)), np.zeros(len(trace))
    for row in np.argsort(at_s, kind="stable").tolist():
        session = int(trace.session[row])
        _, turn[row], expected[row] = history.begin(int(tenants[row]), session, float(at_s[row]))
    actual = np.bincount(trace.session)[trace.session] - turn
    held = place >= len(order) // 2
    by_agent = np.array([actual[~held & (tenants == tenant)].mean() for tenant in tenants[held]])
    own = _rmse(expected[held] - actual[held])
    return {
        "rmse": own,
        "rmse_ratio_constant": own / _rmse(actual[~held].mean() - actual[held]),
        "rmse_ratio_by_agent": own / _rmse(by_agent - actual[held]),
    }


def _take(figures: dict[str, list[float]], name: str, metrics: Mapping[str, float]) -> None:
    figures[f"length.coverage_p90.{name}"].append(metrics["coverage_p90"])
    figures[f"length.kendall_tau.{name}"].append(metrics["kendall_tau"])


def _only(data: Path, pattern: str) -> Path:
    (path,) = data.glob(pattern)
    return path


def _loss(actual: Values, quantiles: Values) -> float:
    return sum(pinball(actual, quantiles[:, i], level) for i, level in enumerate(LEVELS))


def _rmse(errors: Values) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))
