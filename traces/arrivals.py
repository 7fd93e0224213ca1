"""Changing when and how much: rates, arrival models, mixes, superposition, resampling.

Every function returns a new trace and takes its seed as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.traces.arrival_models import ArrivalModel, Daily, Gamma, OnOff, Poisson, Replay
from steersman.traces.bootstrap import block_bootstrap, mix_hashes
from steersman.traces.columns import COLUMN_DTYPES, Vocabulary, gather_blocks
from steersman.traces.errors import ConfigError
from steersman.traces.trace import Trace

__all__ = [
    "ArrivalModel",
    "Daily",
    "Gamma",
    "OnOff",
    "Poisson",
    "Replay",
    "block_bootstrap",
    "rescale",
    "scale_tokens",
    "superpose",
    "with_arrivals",
]


def rescale(trace: Trace, rate_rps: float) -> Trace:
    """Stretch or compress time, so that the mean arrival rate is `rate_rps`.

    Think times stay: users and agents do not think faster because there are more of them.

    Raises:
        ConfigError: the rate is not positive, or the trace has no rate.
    """
    if not rate_rps > 0:
        raise ConfigError(f"rate_rps = {rate_rps:g} must be positive")
    if trace.rate_rps == 0:
        raise ConfigError(f"trace '{trace.name}' has no arrival rate to scale; it needs two arrivals")
    return trace.replace(arrival_s=trace.arrival_s * (trace.rate_rps / rate_rps))


def with_arrivals(trace: Trace, model: ArrivalModel, *, seed: int) -> Trace:
    """New arrival times from a model, in the trace's order.

    The model times what arrives by itself: single requests and first turns of sessions. Later turns
    keep their distance to their parent, so the rate of all requests is the model's times the mean
    number of turns.
    """
    roots = np.flatnonzero(trace.parent < 0)
    moved = trace.arrival_s.copy()
    moved[roots] = model.times(np.random.default_rng(seed), count=len(roots))
    for row in np.flatnonzero(trace.parent >= 0):  # parents stand before their children
        parent = trace.parent[row]
        moved[row] = moved[parent] + (trace.arrival_s[row] - trace.arrival_s[parent])
    return _in_order(trace, moved)


def scale_tokens(trace: Trace, *, input_factor: float = 1.0, output_factor: float = 1.0) -> Trace:
    """Longer or shorter prompts and answers: rounded, at least one token.

    Prefix blocks that no longer fit a shortened prompt are cut off its end; clients' output limits
    scale with the answers.
    """
    for key, value in (("input_factor", input_factor), ("output_factor", output_factor)):
        if not value > 0:
            raise ConfigError(f"{key} = {value:g} must be positive")
    inputs = np.maximum(np.rint(trace.input_tokens * input_factor), 1).astype(np.int64)
    outputs = np.maximum(np.rint(trace.output_tokens * output_factor), 1).astype(np.int64)
    limits = np.maximum(np.rint(trace.max_tokens * output_factor), 1).astype(np.int64)
    counts = np.diff(trace.block_offsets)
    if trace.block_tokens:
        counts = np.minimum(counts, inputs // trace.block_tokens)
    within = np.arange(len(trace.block_hashes)) - np.repeat(
        trace.block_offsets[:-1], np.diff(trace.block_offsets)
    )
    return trace.replace(
        input_tokens=inputs,
        output_tokens=np.where(trace.output_tokens < 0, -1, outputs),
        max_tokens=np.where(trace.max_tokens > 0, limits, 0),
        block_offsets=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))),
        block_hashes=trace.block_hashes[within < np.repeat(counts, np.diff(trace.block_offsets))],
    )


def superpose(traces: Sequence[Trace], *, name: str = "superposed") -> Trace:
    """All traces at once, each from its own time zero: loads add up, nothing else is shared.

    Request and session ids get the trace's number in front; prefix hashes of different traces are
    kept apart.

    Raises:
        ConfigError: no traces, or traces with different prefix block sizes.
    """
    sizes = {trace.block_tokens for trace in traces if len(trace.block_hashes)}
    if not traces or len(sizes) > 1:
        found = ", ".join(str(size) for size in sorted(sizes)) or "no traces"
        raise ConfigError(f"superposed traces need one prefix block size; these have {found}")
    models, tenants, loras = Vocabulary(), Vocabulary(), Vocabulary()
    columns: dict[str, list[NDArray[np.generic]]] = {column: [] for column in COLUMN_DTYPES}
    ids: list[str] = []
    sessions: list[str] = []
    for number, trace in enumerate(traces):
        for column, parts in columns.items():
            parts.append(getattr(trace, column))
        columns["model"][-1] = _recoded(trace.model, trace.models, models)
        columns["tenant"][-1] = _recoded(trace.tenant, trace.tenants, tenants)
        columns["lora"][-1] = _recoded(trace.lora, trace.loras, loras)
        columns["session"][-1] = np.where(trace.session < 0, -1, trace.session + len(sessions))
        columns["parent"][-1] = np.where(trace.parent < 0, -1, trace.parent + len(ids))
        ids.extend(f"{number}/{request_id}" for request_id in trace.request_ids)
        sessions.extend(f"{number}/{session}" for session in trace.sessions)
    hashes = [mix_hashes(t.block_hashes, np.full(len(t.block_hashes), i)) for i, t in enumerate(traces)]
    counts = [np.diff(trace.block_offsets) for trace in traces]
    joined = {column: np.concatenate(parts) for column, parts in columns.items()}
    order = np.argsort(joined["arrival_s"], kind="stable")
    position = np.full(len(ids) + 1, -1, dtype=np.int64)
    position[order] = np.arange(len(ids))
    joined["parent"] = position[joined["parent"]]
    all_offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(counts))))
    offsets, block_hashes = gather_blocks(all_offsets, np.concatenate(hashes), order)
    return traces[0].replace(
        name=name,
        **{column: values[order] for column, values in joined.items()},
        block_offsets=offsets,
        block_hashes=block_hashes,
        block_tokens=sizes.pop() if sizes else 0,
        request_ids=tuple(ids[row] for row in order.tolist()),
        models=models.words,
        tenants=tenants.words,
        loras=loras.words,
        sessions=tuple(sessions),
    )


def _recoded(
    codes: NDArray[np.int32], words: tuple[str, ...], vocabulary: Vocabulary
) -> NDArray[np.int32]:
    """The same words, numbered by another vocabulary; -1 stays."""
    table = np.array([*(vocabulary.code(word) for word in words), -1], dtype=np.int32)
    return table[codes]


def _in_order(trace: Trace, arrival_s: NDArray[np.float64]) -> Trace:
    """The trace with other arrival times, sorted again."""
    order = np.argsort(arrival_s, kind="stable")
    position = np.full(len(trace) + 1, -1, dtype=np.int64)
    position[order] = np.arange(len(trace))
    columns = {column: getattr(trace, column)[order] for column in COLUMN_DTYPES}
    columns["arrival_s"] = arrival_s[order]
    columns["parent"] = position[trace.parent[order]]
    offsets, hashes = gather_blocks(trace.block_offsets, trace.block_hashes, order)
    return trace.replace(
        **columns,
        block_offsets=offsets,
        block_hashes=hashes,
        request_ids=tuple(trace.request_ids[row] for row in order.tolist()),
    )
