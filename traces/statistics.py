"""Figures that describe a trace: rates, burstiness, token quantiles, sessions, prefix reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from steersman.traces.trace import Trace

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
TOP = 10
"""Tenants and models listed by name; the rest are only counted."""


def summarise(trace: Trace) -> dict[str, Any]:
    """A JSON-ready description. Absent figures are None."""
    sizes = session_sizes(trace)
    known = trace.output_tokens[trace.output_tokens >= 0]
    return {
        "name": trace.name,
        "requests": len(trace),
        "duration_s": trace.duration_s,
        "rate_rps": trace.rate_rps,
        "interarrival_cv": interarrival_cv(trace.arrival_s),
        "input_tokens": _describe(trace.input_tokens),
        "output_tokens": _describe(known),
        "output_unknown": len(trace) - len(known),
        "sessions": len(sizes),
        "turns_per_session": _describe(sizes),
        "closed_loop_requests": int((trace.parent >= 0).sum()),
        "think_time_s": _describe(trace.think_time_s[trace.parent >= 0]),
        "block_tokens": trace.block_tokens,
        "prefix_share": prefix_share(trace) if len(trace.block_hashes) else None,
        "tenants": _top(trace.tenant, trace.tenants),
        "tenant_count": len(np.unique(trace.tenant)),
        "model_count": len(np.unique(trace.model)),
        "models": _top(trace.model, trace.models),
        "priorities": _counts(trace.priority),
        "fingerprint": trace.fingerprint(),
    }


def interarrival_cv(arrival_s: NDArray[np.float64]) -> float | None:
    """Coefficient of variation of the gaps between arrivals: 1 for Poisson, above 1 is bursty."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or gaps.mean() <= 0:
        return None
    return float(gaps.std() / gaps.mean())


def session_sizes(trace: Trace) -> NDArray[np.int64]:
    """Requests per session, for the sessions that occur."""
    codes = trace.session[trace.session >= 0]
    return np.unique(codes, return_counts=True)[1].astype(np.int64)


def seen_blocks(trace: Trace) -> NDArray[np.int64]:
    """(n,): each request's leading prefix blocks that an earlier request already had.

    What an unbounded cache shared by everyone would hit.
    """
    counts = np.diff(trace.block_offsets)
    seen = np.zeros(len(trace), dtype=np.int64)
    if not len(trace.block_hashes):
        return seen
    rows = np.repeat(np.arange(len(trace)), counts)
    _, first_use, inverse = np.unique(trace.block_hashes, return_index=True, return_inverse=True)
    is_new = rows[first_use[inverse]] == rows
    blocks = len(trace.block_hashes)
    first_new = np.where(is_new, np.arange(blocks), blocks)
    has_blocks = counts > 0
    starts = trace.block_offsets[:-1][has_blocks]
    seen[has_blocks] = np.minimum.reduceat(first_new, starts) - starts
    return np.minimum(seen, counts)


def prefix_share(trace: Trace) -> float:
    """Share of all prompt tokens that `seen_blocks` would save, 0 to 1."""
    total = int(trace.input_tokens.sum())
    return float(seen_blocks(trace).sum() * trace.block_tokens / total) if total else 0.0


def _describe(values: NDArray[Any]) -> dict[str, float] | None:
    if not len(values):
        return None
    quantiles = np.quantile(values, list(QUANTILES.values()))
    return {"mean": float(values.mean())} | dict(zip(QUANTILES, quantiles.tolist(), strict=True))


def _top(codes: NDArray[np.int32], words: tuple[str, ...]) -> dict[str, int]:
    used, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:TOP]
    return {words[used[i]]: int(counts[i]) for i in order}


def _counts(values: NDArray[Any]) -> dict[str, int]:
    used, counts = np.unique(values, return_counts=True)
    return {f"P{value}": int(count) for value, count in zip(used, counts, strict=True)}
