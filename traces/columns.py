"""The columns of a trace, and how they are collected from requests."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.traces.errors import TraceError
from steersman.traces.schema import QuestionType, Request

Int64 = NDArray[np.int64]

QUESTION_TYPES = tuple(QuestionType)
"""What `Trace.question_type` counts in."""
_QUESTION_CODES = {kind: code for code, kind in enumerate(QUESTION_TYPES)}

COLUMN_DTYPES: dict[str, type[np.generic]] = {
    "arrival_s": np.float64,
    "input_tokens": np.int64,
    "output_tokens": np.int64,
    "max_tokens": np.int64,
    "priority": np.int8,
    "stream": np.bool_,
    "tools": np.int16,
    "tool_choice": np.int8,
    "has_code": np.bool_,
    "question_type": np.int8,
    "question_bytes": np.int64,
    "asked_tokens": np.int64,
    "wording": np.float64,
    "turns": np.int32,
    "model": np.int32,
    "tenant": np.int32,
    "lora": np.int32,
    "session": np.int64,
    "parent": np.int64,
    "think_time_s": np.float64,
    "hour_of_day": np.float64,
    "called_tool": np.int8,
}
"""The per-request columns, in the order of the dataclass."""

MAX_TOOLS = 32_767
"""What the column holds; more tools count as this many."""


class Vocabulary:
    """Words numbered in order of first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, word: str) -> int:
        """The word's number; a new word gets the next one."""
        return self._codes.setdefault(word, len(self._codes))

    @property
    def words(self) -> tuple[str, ...]:
        """All words, by number."""
        return tuple(self._codes)


def gather_blocks(offsets: Int64, hashes: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Offsets and hashes of `rows` (any order, repeats allowed), without a Python loop."""
    counts = np.diff(offsets)[rows]
    taken = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    within = np.arange(int(taken[-1])) - np.repeat(taken[:-1], counts)
    return taken, hashes[np.repeat(offsets[:-1][rows], counts) + within]


class Columns:
    """Requests so far, column by column in flat arrays: a million of them are no million objects."""

    def __init__(self) -> None:
        self._values: dict[str, array[Any]] = {
            column: array("d" if dtype is np.float64 else "q")
            for column, dtype in COLUMN_DTYPES.items()
            if column != "parent"
        }
        self._appends = tuple(values.append for values in self._values.values())
        self._ids: list[str] = []
        self._parents: dict[int, str] = {}
        self._block_counts = array("q", (0,))
        self._hashes = array("q")
        self._block_sizes: set[int] = set()
        self._words = tuple(Vocabulary() for _ in range(4))

    def add(self, r: Request) -> None:
        """Take a request's values; the object is not kept."""
        models, tenants, loras, sessions = self._words
        values = (
            r.arrival_s,
            r.input_tokens,
            -1 if r.output_tokens is None else r.output_tokens,
            r.max_tokens or 0,
            r.priority,
            r.stream,
            min(r.tools, MAX_TOOLS),
            r.tool_choice,
            r.has_code,
            _QUESTION_CODES[r.question_type],
            r.question_bytes,
            r.asked_tokens,
            r.wording,
            r.turns,
            models.code(r.model),
            tenants.code(r.tenant),
            -1 if r.lora_adapter is None else loras.code(r.lora_adapter),
            -1 if r.session_id is None else sessions.code(r.session_id),
            r.think_time_s,
            np.nan if r.hour_of_day is None else r.hour_of_day,
            -1 if r.called_tool is None else r.called_tool,
        )
        for append, value in zip(self._appends, values, strict=True):
            append(value)
        if r.parent_id is not None:
            self._parents[len(self._ids)] = r.parent_id
        if r.block_hashes:
            self._hashes.extend(r.block_hashes)
            self._block_sizes.add(r.block_tokens)
        self._block_counts.append(len(r.block_hashes))
        self._ids.append(r.request_id)

    def finish(self, name: str) -> dict[str, Any]:
        """The fields of the `Trace` of all requests so far.

        Raises:
            TraceError: two prefix block sizes.
        """
        if len(self._block_sizes) > 1:
            found = ", ".join(str(size) for size in sorted(self._block_sizes))
            raise TraceError(
                f"trace '{name}': has prefix blocks of {found} tokens; a trace has one block size"
            )
        order = np.argsort(np.array(self._values["arrival_s"]), kind="stable")
        columns = {
            column: np.array(values)[order].astype(COLUMN_DTYPES[column])
            for column, values in self._values.items()
        }
        offsets, hashes = gather_blocks(
            np.cumsum(np.array(self._block_counts)), np.array(self._hashes), order
        )
        words: dict[str, tuple[str, ...]] = {}
        for column, vocabulary in zip(("model", "tenant", "lora", "session"), self._words, strict=True):
            columns[column], words[column + "s"] = _renumbered(columns[column], vocabulary.words)
        return {
            "name": name,
            **columns,
            "parent": self._linked(order),
            "block_offsets": offsets,
            "block_hashes": hashes,
            "block_tokens": max(self._block_sizes, default=0),
            "request_ids": tuple(self._ids[row] for row in order.tolist()),
            "models": words["models"] or ("",),
            "tenants": words["tenants"] or ("",),
            "loras": words["loras"],
            "sessions": words["sessions"],
        }

    def _linked(self, order: Int64) -> Int64:
        """Rows of the parents, after sorting."""
        parent = np.full(len(order), -1, dtype=np.int64)
        if self._parents:
            position = np.empty(len(order), dtype=np.int64)
            position[order] = np.arange(len(order))
            row_of = {request_id: row for row, request_id in enumerate(self._ids)}
            for row, parent_id in self._parents.items():
                if parent_id in row_of:
                    parent[position[row]] = position[row_of[parent_id]]
        return parent


def _renumbered(codes: NDArray[Any], words: tuple[str, ...]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Codes in order of first use, -1 apart: the same whatever the order in which words came in."""
    used, first = np.unique(codes, return_index=True)
    order = [code for code in used[np.argsort(first)].tolist() if code >= 0]
    table = np.full(len(words) + 1, -1, dtype=codes.dtype)
    table[order] = np.arange(len(order))
    return table[codes], tuple(words[code] for code in order)
