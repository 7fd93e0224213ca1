"""What an outcome log holds, in figures: who decided and why, how it went, what can be learned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from steersman.traces.framing import Damage
from steersman.traces.outcome_reading import read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import FRAMED, segments
from steersman.traces.schema import Status

QUANTILES = (0.5, 0.9, 0.99)
MOST_NAMES = 10
NEEDED = frozenset(
    (
        *("status", "policy", "policy_version", "bundle_version", "fallback_reason", "affinity", "arm"),
        *("propensity", "explored", "held_s", "retries", "ttft_s", "tpot_s", "e2e_s", "queued_s"),
        *("ttft_p50_s", "ttft_p90_s", "choice", "error", "replica_id", "scores"),
    )
)
"""The fields that a summary looks at."""


def summarise_log(path: str | Path) -> dict[str, Any]:
    """Figures of a log directory, or of one segment.

    `latency`: quantiles of what ended well, in seconds. `propensity`: of the decisions, how many have
    one in (0, 1], how many were made by chance (below 1), how many were explored, and the smallest.
    `predicted_ttft`: share of first tokens within p90 of the prediction, and the median of
    |log(realised / predicted)|. `damage`: places skipped; a torn tail is where a writer is at work, or
    was killed.

    Raises:
        TraceError: see `read_outcomes`.
    """
    path = Path(path)
    damage: list[Damage] = []
    summary = summarise_records(read_outcomes(path, on_damage=damage.append, only=NEEDED))
    files = segments(path) if path.is_dir() else [path]
    framed = sum(file.suffix == FRAMED for file in files)
    sizes = [file.stat().st_size for file in files if file.exists()]
    return summary | {
        "segments": {"compacted": len(files) - framed, "framed": framed, "bytes": sum(sizes)},
        "damage": {
            "places": sum(not item.torn for item in damage),
            "bytes": sum(item.size for item in damage if not item.torn),
            "torn_tails": sum(item.torn for item in damage),
        },
    }


def summarise_records(records: Iterable[OutcomeRecord]) -> dict[str, Any]:
    """The figures that follow from the records alone."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    numbers: dict[str, list[float]] = {name: [] for name in _NUMBERS}
    total = decisions = explored = held = retried = 0
    for record in records:
        total += 1
        for name, counter in counts.items():
            counter[str(getattr(record, name))] += 1
        held += record.held_s > 0.0
        retried += record.retries > 0
        if record.choice >= 0:
            decisions += 1
            explored += record.explored
            numbers["propensity"].append(record.propensity)
        if record.status is Status.OK:
            for name in ("ttft_s", "tpot_s", "e2e_s"):
                numbers[name].append(getattr(record, name))
            numbers["waited_s"].append(record.ttft_s - record.queued_s)
            numbers["ttft_p50_s"].append(record.ttft_p50_s)
            numbers["ttft_p90_s"].append(record.ttft_p90_s)
    columns = {name: np.array(values) for name, values in numbers.items()}
    return {
        "records": total,
        "decisions": decisions,
        **{name: _named(counter) for name, counter in counts.items()},
        "held_back": held,
        "retried": retried,
        "latency": {name: _quantiles(columns[name]) for name in ("ttft_s", "tpot_s", "e2e_s")},
        "propensity": _propensity(columns["propensity"], explored),
        "predicted_ttft": _predicted(columns),
    }


_COUNTED = (
    *("status", "policy", "policy_version", "bundle_version", "fallback_reason", "affinity", "arm"),
    "error",
)
_NUMBERS = (
    *("ttft_s", "tpot_s", "e2e_s", "waited_s", "ttft_p50_s", "ttft_p90_s"),
    "propensity",
)


def _named(counter: Counter[str]) -> dict[str, int]:
    """The most frequent, the empty name left out."""
    return {name: count for name, count in counter.most_common(MOST_NAMES + 1) if name}


def _quantiles(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float] | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    found = np.quantile(known, QUANTILES).tolist()
    return {f"p{100 * q:g}": value for q, value in zip(QUANTILES, found, strict=True)}


def _propensity(values: np.ndarray[Any, np.dtype[np.float64]], explored: int) -> dict[str, Any]:
    known = values[(values > 0.0) & (values <= 1.0)]
    share = 1.0 / max(len(values), 1)
    return {
        "known_share": len(known) * share,
        "by_chance_share": int((known < 1.0).sum()) * share,
        "explored_share": explored * share,
        "least": float(known.min()) if len(known) else None,
    }


def _predicted(columns: dict[str, np.ndarray[Any, np.dtype[np.float64]]]) -> dict[str, float] | None:
    waited, p50, p90 = columns["waited_s"], columns["ttft_p50_s"], columns["ttft_p90_s"]
    known = (waited > 0.0) & (p50 > 0.0) & np.isfinite(waited)
    if not known.any():
        return None
    error = np.abs(np.log(waited[known] / p50[known]))
    return {
        "compared": int(known.sum()),
        "within_p90_share": float((waited[known] <= p90[known]).mean()),
        "median_log_error": float(np.median(error)) if math.isfinite(float(error.sum())) else math.nan,
    }
