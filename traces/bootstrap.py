"""New traces out of an old one: a seeded block bootstrap (EVALUATION, "Splits by time")."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.traces.columns import COLUMN_DTYPES, gather_blocks
from steersman.traces.errors import ConfigError
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

COMMON_SHARE = 0.01
"""A prefix block in at least this share of all units is a common system prompt: copies keep it."""
COMMON_UNITS = 3
"""And in at least so many units."""


def block_bootstrap(
    trace: Trace, *, rate_rps: float, duration_s: float, seed: int, block_s: float = 30.0
) -> Trace:
    """Resample a trace to any rate and length, keeping its short-term rhythm, mixes and sessions.

    The trace is cut into blocks of `block_s`. Blocks drawn with replacement, one after another, make a
    layer; as many layers as the rate needs are laid over each other, and thinned evenly. What is
    drawn is always whole: a session comes with its first turn's block and runs on past it, with its
    turns' relative times and think times. Times are then stretched, by a few percent, so that exactly
    round(rate_rps * duration_s) requests arrive within `duration_s`: the load is what was asked for.

    Sessions under way at time 0 are there from the middle, their first turn as a root: the stream is
    stationary from the start.

    Copies get ids of their own and, from a block's second copy on, prefix hashes of their own, so that
    a copy does not hit what its original left in a cache. Blocks common to many sessions (system
    prompts) keep their hashes.

    Raises:
        ConfigError: an empty trace, or a rate, duration or block length that is not positive.
    """
    for key, value in (("rate_rps", rate_rps), ("duration_s", duration_s), ("block_s", block_s)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{key} = {value:g} must be a positive number")
    if not len(trace):
        raise ConfigError(f"trace '{trace.name}' has no requests to resample")
    wanted = max(round(rate_rps * duration_s), 1)
    units = _units(trace, block_s)
    rng = np.random.default_rng(seed)
    copies = _draw(units, rng, rate_rps, duration_s, wanted)
    return _assemble(trace, units, copies, duration_s, wanted)


class _Units(NamedTuple):
    """What is drawn as a whole: sessions, and requests that belong to none. u units, n rows."""

    of_row: Int64
    """(n,): unit of each row; units are numbered by first arrival."""
    offset_s: Float64
    """(n,): from the unit's first arrival."""
    rows: Int64
    """(n,): rows grouped by unit, in order."""
    row_start: Int64
    """(u + 1,): where each unit's rows begin in `rows`."""
    start_s: Float64
    """(u,): first arrival, from the first of all."""
    block_start: Int64
    """(blocks + 1,): first unit of each block, since units are sorted by time."""
    block_s: float

    @property
    def requests_per_s(self) -> float:
        """Of the blocks that can be drawn."""
        used = int(self.row_start[self.block_start[-1]])
        return used / ((len(self.block_start) - 1) * self.block_s)


class _Copies(NamedTuple):
    """Units drawn, c of them."""

    unit: Int64
    time_s: Float64
    """First arrival in the new trace; may be before 0."""
    generation: Int64
    """How often the same block had been drawn before."""


def _units(trace: Trace, block_s: float) -> _Units:
    root = trace.session_starts()
    firsts, of_row = np.unique(root, return_inverse=True)
    rows = np.argsort(of_row, kind="stable")
    row_start = np.searchsorted(of_row[rows], np.arange(len(firsts) + 1))
    start_s = trace.arrival_s[firsts] - trace.arrival_s[0]
    offset_s = trace.arrival_s - trace.arrival_s[firsts][of_row]
    span_s = float(start_s[-1])
    # Blocks shorter than the mean distance of units hold no rhythm, only nothing.
    block_s = max(block_s, span_s / len(firsts))
    # The last, incomplete block is left out; a trace shorter than a block is one block.
    blocks = max(int(span_s / block_s), 1)
    block_s = block_s if span_s >= block_s else max(span_s, 1e-3)
    edges = np.arange(blocks + 1) * block_s
    edges[-1] = max(edges[-1], span_s + 1e-9) if blocks == 1 else edges[-1]
    return _Units(of_row, offset_s, rows, row_start, start_s, np.searchsorted(start_s, edges), block_s)


def _draw(
    units: _Units, rng: np.random.Generator, rate: float, duration_s: float, wanted: int
) -> _Copies:
    """Draw until at least `wanted` requests arrive after time 0, most likely at the first attempt."""
    factor = rate / units.requests_per_s
    layers = math.ceil(factor)
    # Sessions that began so long ago may still run; those that run for many times the duration are rare.
    before_s = min(float(units.offset_s.max()), max(4.0 * duration_s, 3600.0))
    horizon_s = duration_s * 1.1 + 2.0 * units.block_s
    while True:
        copies = _layers(units, rng, layers, factor / layers, before_s, horizon_s)
        lengths = np.diff(units.row_start)[copies.unit]
        times = np.repeat(copies.time_s, lengths) + units.offset_s[_rows_of(units, copies)]
        if int((times >= 0).sum()) >= wanted:
            return copies
        horizon_s *= 1.5


def _layers(
    units: _Units, rng: np.random.Generator, layers: int, keep: float, before_s: float, horizon_s: float
) -> _Copies:
    blocks = len(units.block_start) - 1
    slots = math.ceil((before_s + horizon_s) / units.block_s) + 1
    drawn = rng.integers(blocks, size=layers * slots)
    phase = rng.uniform(0.0, units.block_s, layers)
    slot_s = np.arange(slots) * units.block_s - before_s - phase[:, None]
    unit_counts = np.diff(units.block_start)[drawn]
    unit = _ranges(units.block_start[drawn], unit_counts)
    within_s = units.start_s[unit] - np.repeat(drawn * units.block_s, unit_counts)
    time_s = np.repeat(slot_s.ravel(), unit_counts) + within_s
    generation = np.repeat(_earlier_draws(drawn), unit_counts)
    kept = (rng.random(len(unit)) < keep) & (time_s < horizon_s)
    return _Copies(unit[kept], time_s[kept], generation[kept])


def _assemble(trace: Trace, units: _Units, copies: _Copies, duration_s: float, wanted: int) -> Trace:
    lengths = np.diff(units.row_start)[copies.unit]
    rows = _rows_of(units, copies)
    copy = np.repeat(np.arange(len(copies.unit)), lengths)
    time_s = copies.time_s[copy] + units.offset_s[rows]
    # Row positions before sorting: a copy's rows stand together, in the unit's order.
    rank = np.empty(len(trace), dtype=np.int64)
    rank[units.rows] = np.arange(len(trace)) - np.repeat(units.row_start[:-1], np.diff(units.row_start))
    first = np.concatenate(([0], np.cumsum(lengths)))[copy]
    parent = trace.parent[rows]
    has_parent = (parent >= 0) & (units.of_row[parent] == units.of_row[rows])
    parent = np.where(has_parent, first + rank[parent], -1)

    order = np.argsort(time_s, kind="stable")
    order = order[time_s[order] >= 0][: wanted + 1]
    # The arrival after the last wanted one marks the end, if there is one.
    end_s = time_s[order[-1]] if len(order) > wanted else time_s[order[-1]] * (wanted + 1) / wanted
    order = order[:wanted]
    position = np.full(len(rows) + 1, -1, dtype=np.int64)
    position[order] = np.arange(len(order))

    rows, copy = rows[order], copy[order]
    columns = {column: getattr(trace, column)[rows] for column in COLUMN_DTYPES}
    columns["arrival_s"] = time_s[order] * (duration_s / end_s if end_s > 0 else 0.0)
    columns["parent"] = position[parent[order]]
    names, columns["session"] = _sessions(trace, columns["session"], copy)
    offsets, hashes = gather_blocks(trace.block_offsets, trace.block_hashes, rows)
    generation = np.repeat(copies.generation[copy], np.diff(offsets))
    return trace.replace(
        **columns,
        block_offsets=offsets,
        block_hashes=_relabelled(trace, units, hashes, generation),
        request_ids=tuple(
            f"{trace.request_ids[row]}#{number}"
            for row, number in zip(rows.tolist(), copy.tolist(), strict=True)
        ),
        sessions=names,
    )


def _sessions(trace: Trace, session: Int64, copy: Int64) -> tuple[tuple[str, ...], Int64]:
    """A session of its own for each copy: names, and the column."""
    in_session = session >= 0
    copies, codes = np.unique(copy[in_session], return_inverse=True)
    column = np.full(len(session), -1, dtype=np.int64)
    column[in_session] = codes
    original = np.empty(len(copies), dtype=np.int64)
    original[codes] = session[in_session]
    names = zip(original.tolist(), copies.tolist(), strict=True)
    return tuple(f"{trace.sessions[code]}#{number}" for code, number in names), column


def _relabelled(trace: Trace, units: _Units, hashes: Int64, generation: Int64) -> Int64:
    """Hashes of their own for all generations but the first, save for what is common to many units."""
    if not len(hashes):
        return hashes
    unit_of_block = np.repeat(units.of_row, np.diff(trace.block_offsets))
    distinct, inverse = np.unique(trace.block_hashes, return_inverse=True)
    pairs = np.unique(inverse * len(units.start_s) + unit_of_block)
    uses = np.bincount(pairs // len(units.start_s), minlength=len(distinct))
    common = distinct[uses >= max(COMMON_UNITS, COMMON_SHARE * len(units.start_s))]
    fresh = (generation > 0) & ~np.isin(hashes, common)
    return np.where(fresh, mix_hashes(hashes, generation), hashes)


def mix_hashes(hashes: Int64, key: Int64) -> Int64:
    """Other hashes, the same for the same (hash, key): SplitMix64's finaliser, cut to 63 bits."""
    mixed = hashes.astype(np.uint64) + key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Int64 = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
    return result


def _rows_of(units: _Units, copies: _Copies) -> Int64:
    """Rows of all copies, one copy after the other."""
    return units.rows[_ranges(units.row_start[copies.unit], np.diff(units.row_start)[copies.unit])]


def _ranges(starts: Int64, counts: Int64) -> Int64:
    """start, start + 1, … for each pair, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    result: Int64 = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return result


def _earlier_draws(drawn: Int64) -> Int64:
    """For each draw, how often the same block was drawn before."""
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    starts = np.searchsorted(ordered, ordered)
    earlier = np.empty(len(drawn), dtype=np.int64)
    earlier[order] = np.arange(len(drawn)) - starts
    return earlier
