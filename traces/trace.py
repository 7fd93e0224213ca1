"""A whole trace in memory, as columns: what the cluster model, training and evaluation read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.traces.columns import COLUMN_DTYPES, QUESTION_TYPES, Columns, gather_blocks
from steersman.traces.errors import TraceError
from steersman.traces.schema import Priority, Request, ToolChoice
from steersman.traces.statistics import summarise

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """n requests, sorted by arrival (ties keep their order). All columns have shape (n,).

    Invariants, checked at construction: arrivals are finite and do not decrease; a parent stands in an
    earlier row than its child; `block_offsets` frames `block_hashes`; request ids are unique.

    Raises:
        TraceError: an invariant does not hold.
    """

    name: str
    arrival_s: NDArray[np.float64]
    """Seconds from the trace's start."""
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    """-1: unknown."""
    max_tokens: NDArray[np.int64]
    """0: the client set no limit."""
    priority: NDArray[np.int8]
    stream: NDArray[np.bool_]
    tools: NDArray[np.int16]
    tool_choice: NDArray[np.int8]
    """`ToolChoice`."""
    has_code: NDArray[np.bool_]
    question_type: NDArray[np.int8]
    """Position in `QuestionType`."""
    question_bytes: NDArray[np.int64]
    asked_tokens: NDArray[np.int64]
    wording: NDArray[np.float64]
    turns: NDArray[np.int32]
    model: NDArray[np.int32]
    """Position in `models`."""
    tenant: NDArray[np.int32]
    """Position in `tenants`."""
    lora: NDArray[np.int32]
    """Position in `loras`; -1: none."""
    session: NDArray[np.int64]
    """Position in `sessions`; -1: none."""
    parent: NDArray[np.int64]
    """Row of the previous turn of the same session; -1: none, the request arrives by itself."""
    think_time_s: NDArray[np.float64]
    """From the parent's last token to this arrival."""
    hour_of_day: NDArray[np.float64]
    """NaN: unknown."""
    called_tool: NDArray[np.int8]
    """1: the answer calls a tool, 0: it does not, -1: unknown."""
    block_offsets: NDArray[np.int64]
    """(n + 1,): request i has the hashes `block_hashes[block_offsets[i]:block_offsets[i + 1]]`."""
    block_hashes: NDArray[np.int64]
    """(blocks,): chained hashes of full prefix blocks."""
    block_tokens: int
    """Tokens per prefix block; 0 where no request has hashes."""
    request_ids: tuple[str, ...]
    models: tuple[str, ...] = ("",)
    tenants: tuple[str, ...] = ("",)
    loras: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.request_ids)
        for column, dtype in COLUMN_DTYPES.items():
            values = getattr(self, column)
            if values.shape != (n,) or values.dtype != dtype:
                raise TraceError(
                    f"trace '{self.name}': column '{column}' is {values.dtype}{values.shape}, "
                    f"expected {np.dtype(dtype)}({n},)"
                )
        self._check_order(n)
        offsets = self.block_offsets
        framed = len(offsets) == n + 1 and offsets[0] == 0 and offsets[-1] == len(self.block_hashes)
        if not framed or (np.diff(offsets) < 0).any():
            raise TraceError(f"trace '{self.name}': block_offsets do not frame block_hashes")
        if len(self.block_hashes) and self.block_tokens <= 0:
            raise TraceError(f"trace '{self.name}': has block hashes but block_tokens is not positive")

    def _check_order(self, n: int) -> None:
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise TraceError(f"trace '{self.name}': arrivals must be finite and sorted")
        bad = np.flatnonzero((self.parent >= np.arange(n)) | (self.parent < -1))
        if len(bad):
            raise TraceError(
                f"trace '{self.name}': request '{self.request_ids[int(bad[0])]}' arrives before its "
                "parent turn; correct the arrival times or drop the parent"
            )
        if len(set(self.request_ids)) != n:
            seen: set[str] = set()
            twice = next(i for i in self.request_ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise TraceError(
                f"trace '{self.name}': request id '{twice}' appears twice; ids must be unique"
            )

    def __len__(self) -> int:
        return len(self.request_ids)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_rps(self) -> float:
        """Mean arrival rate; 0 for fewer than two arrivals or no duration."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else 0.0

    def request(self, row: int) -> Request:
        """One row as a `Request`."""
        return next(self._requests(row, row + 1))

    def requests(self) -> Iterator[Request]:
        """All rows in order."""
        step = 4096  # bounds the Python objects alive at once
        for start in range(0, len(self), step):
            yield from self._requests(start, min(start + step, len(self)))

    def _requests(self, start: int, stop: int) -> Iterator[Request]:
        columns = [getattr(self, column)[start:stop].tolist() for column in COLUMN_DTYPES]
        offsets = self.block_offsets[start : stop + 1].tolist()
        hashes = self.block_hashes[offsets[0] : offsets[-1]].tolist()
        for i, values in enumerate(zip(*columns, strict=True)):
            arrival, inputs, outputs, limit, priority, stream, tools, choice, code, kind, *rest = values
            question, asked, wording, turns, model, tenant, lora, session, parent, *times = rest
            think, hour, called = times
            first, last = offsets[i] - offsets[0], offsets[i + 1] - offsets[0]
            yield Request(
                request_id=self.request_ids[start + i],
                arrival_s=arrival,
                input_tokens=inputs,
                output_tokens=None if outputs < 0 else outputs,
                max_tokens=limit or None,
                model=self.models[model],
                tenant=self.tenants[tenant],
                priority=Priority(priority),
                stream=stream,
                tools=tools,
                tool_choice=ToolChoice(choice),
                has_code=code,
                question_type=QUESTION_TYPES[kind],
                question_bytes=question,
                asked_tokens=asked,
                wording=wording,
                turns=turns,
                lora_adapter=None if lora < 0 else self.loras[lora],
                session_id=None if session < 0 else self.sessions[session],
                parent_id=None if parent < 0 else self.request_ids[parent],
                think_time_s=think,
                block_hashes=tuple(hashes[first:last]),
                block_tokens=self.block_tokens if last > first else 0,
                hour_of_day=None if hour != hour else hour,  # noqa: PLR0124 (NaN)
                called_tool=None if called < 0 else bool(called),
            )

    @staticmethod
    def from_requests(name: str, requests: Iterable[Request]) -> Trace:
        """Collect requests into columns, sorted by arrival; none of them is kept.

        A parent that is not among the requests is forgotten: its child becomes a root.

        Raises:
            TraceError: duplicate ids, a child before its parent, or two prefix block sizes.
        """
        collected = Columns()
        for request in requests:
            collected.add(request)
        return Trace(**collected.finish(name))

    def select(self, rows: Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.bool_]) -> Trace:
        """The given rows (indices or a mask), in trace order, each once.

        A child whose parent is left out becomes a root. Vocabularies stay as they are.
        """
        index = np.asarray(rows)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        index = np.unique(index.astype(np.int64))
        position = np.full(len(self) + 1, -1, dtype=np.int64)  # the last entry stands for "no parent"
        position[index] = np.arange(len(index))
        columns = {column: getattr(self, column)[index] for column in COLUMN_DTYPES}
        columns["parent"] = position[columns["parent"]]
        offsets, hashes = gather_blocks(self.block_offsets, self.block_hashes, index)
        return self.replace(
            **columns,
            block_offsets=offsets,
            block_hashes=hashes,
            request_ids=tuple(self.request_ids[row] for row in index.tolist()),
        )

    def between(self, start_s: float, end_s: float) -> Trace:
        """Arrivals in [start_s, end_s), with `start_s` as the new zero."""
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s), side="left").tolist()
        part = self.select(np.arange(first, last))
        return part.replace(arrival_s=part.arrival_s - start_s)

    def session_starts(self) -> Int64:
        """(n,): the row with which each row's session, or chain of parents, begins.

        A row that belongs to neither is its own start.
        """
        in_session = self.session >= 0
        codes = self.session[in_session]
        start = np.where(self.parent >= 0, self.parent, np.arange(len(self)))
        while True:
            earlier = start[start]
            first = np.full(len(self.sessions), len(self), dtype=np.int64)
            np.minimum.at(first, codes, earlier[in_session])
            earlier[in_session] = first[codes]
            if np.array_equal(earlier, start):
                return start
            start = earlier

    def split(self, fractions: Sequence[float]) -> tuple[Trace, ...]:
        """Consecutive parts by time, each starting at zero; `(0.6, 0.15, 0.25)` is EVALUATION's split.

        A session belongs whole to the part in which it begins, so that no part knows another's.

        Raises:
            ValueError: fractions are not positive or sum to more than 1.
        """
        if min(fractions, default=0.0) <= 0.0 or sum(fractions) > 1.0 + 1e-9:
            raise ValueError(f"fractions {tuple(fractions)} must be positive and sum to at most 1")
        starts_s = self.arrival_s[self.session_starts()]
        first_s, last_s = (starts_s.min(), starts_s.max()) if len(self) else (0.0, 0.0)
        edges = first_s + np.concatenate(([0.0], np.cumsum(fractions))) * (last_s - first_s)
        if sum(fractions) > 1.0 - 1e-9:
            edges[-1] = np.inf  # the last arrival belongs to the last part
        parts = []
        for begin_s, end_s in pairwise(edges.tolist()):
            part = self.select((starts_s >= begin_s) & (starts_s < end_s))
            parts.append(part.replace(arrival_s=part.arrival_s - begin_s))
        return tuple(parts)

    def replace(self, **changes: Any) -> Trace:
        """A copy with some fields changed; the invariants are checked again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Trace(**(values | changes))

    def fingerprint(self) -> str:
        """SHA-256 of all columns and vocabularies, not of the name."""
        digest = hashlib.sha256()
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(f"{field.name}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """What `steersman trace inspect` shows; see `statistics.summarise`."""
        return summarise(self)
