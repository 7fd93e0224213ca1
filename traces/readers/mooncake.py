"""Mooncake traces: long prompts with chained ids of 512-token prefix blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from steersman.traces.readers.fields import Fields
from steersman.traces.readers.order import Placed, Recent, reordered
from steersman.traces.readers.source import Row, Source
from steersman.traces.schema import Request

JSONL_COLUMNS = ("timestamp", "input_length", "output_length")
"""As published; `hash_ids` beside them, `timestamp` in milliseconds."""
TABLE_COLUMNS = ("t_s", "input_tokens", "output_tokens", "hash_ids")
"""Normalised; beside them `t_jittered_s`, `session_inferred`, `turn_inferred` and `parent_inferred`."""

BLOCK_TOKENS = 512
TICK_S = 3.0
"""The production recordings round times to ticks of three seconds."""
SHARED_BLOCKS = 2
"""A prompt that shares fewer blocks with an earlier one only has the same system prompt."""


Timed = tuple[float, int, Row]
"""(time in milliseconds, place, row)."""


class Turn(NamedTuple):
    """Where a request stands in its session."""

    request_id: str
    session: str
    number: int
    arrival_s: float


class SessionFinder:
    """Finds the conversation a prompt goes on with, from its prefix blocks alone.

    The parent is the latest earlier request all of whose blocks but the last (which is partly
    filled, so its id changes as the conversation grows) begin this prompt, two at least.
    """

    def __init__(self) -> None:
        self._ends: Recent[int, Turn] = Recent()

    def place(
        self, request_id: str, arrival_s: float, blocks: Sequence[int]
    ) -> tuple[Turn, Turn | None]:
        """This request's turn, and its parent's.

        Args:
            blocks: all block ids of the prompt, the partly filled last one included.
        """
        parent: Turn | None = None
        # Ids are chained: equal ids mean equal prompts up to there, so one look-up per length is enough.
        for block in reversed(blocks[SHARED_BLOCKS - 1 :]):
            parent = self._ends.get(block)
            if parent is not None:
                break
        session = request_id if parent is None else parent.session
        number = 0 if parent is None else parent.number + 1
        turn = Turn(request_id, session, number, arrival_s)
        if len(blocks) > SHARED_BLOCKS:
            self._ends[blocks[-2]] = turn
        return turn, parent


def read_mooncake(source: Source, model: str) -> Iterator[Placed]:
    """The JSON lines as Mooncake publishes them; sessions are inferred from the prefix blocks.

    Requests of the same tick are spread uniformly over it (up to the next time, where times are
    finer), in their order, always in the same way.
    Think times count from the parent's arrival, since the recording has no end times.
    """
    fields = Fields(str(source.path))
    finder = SessionFinder()
    places = ((fields.at(place, row).seconds("timestamp"), place, row) for place, row in source.rows())
    for tick, length_s in _ticks(places):
        time_ms = tick[0][0]
        offsets_s = _spread(int(time_ms), length_s, len(tick))
        for offset_s, (_, place, row) in zip(offsets_s, tick, strict=True):
            at = fields.at(place, row)
            blocks = at.hashes("hash_ids")
            arrival_s = time_ms / 1000.0 + offset_s
            turn, parent = finder.place(f"r{place}", arrival_s, blocks)
            inputs, outputs = at.tokens("input_length"), at.tokens("output_length")
            yield place, _request(turn, parent, inputs, outputs, blocks, model)


def read_mooncake_table(source: Source, model: str) -> Iterator[Placed]:
    """The normalised table, with its inferred sessions; jittered times where it has them."""
    return reordered(_table(source, model))


def _table(source: Source, model: str) -> Iterator[tuple[float, float, Placed]]:
    fields = Fields(str(source.path))
    time_column = "t_jittered_s" if "t_jittered_s" in source.columns else "t_s"
    has_sessions = {"session_inferred", "parent_inferred"} <= set(source.columns)
    finder = SessionFinder()
    turns: Recent[int, Turn] = Recent()
    for number, (place, row) in enumerate(source.rows()):
        at = fields.at(place, row)
        arrival_s = at.seconds(time_column)
        blocks = at.hashes("hash_ids")
        if has_sessions:
            parent_row = at.integer("parent_inferred", -1, number - 1)
            parent = turns.get(parent_row)
            if parent is not None:  # jitter within a tick may have swapped the two
                arrival_s = max(arrival_s, parent.arrival_s)
            position = at.integer("turn_inferred") if at.has("turn_inferred") else 0
            turn = Turn(f"r{place}", f"s{at.integer('session_inferred')}", position, arrival_s)
            turns[number] = turn
        else:
            turn, parent = finder.place(f"r{place}", arrival_s, blocks)
        inputs, outputs = at.tokens("input_tokens"), at.tokens("output_tokens")
        # Jitter moves a time forward only, so the rounded time bounds all that follow.
        request = _request(turn, parent, inputs, outputs, blocks, model)
        yield at.seconds("t_s"), arrival_s, (place, request)


def _request(
    turn: Turn, parent: Turn | None, inputs: int, outputs: int, blocks: Sequence[int], model: str
) -> Request:
    full = tuple(blocks[: inputs // BLOCK_TOKENS])
    return Request(
        request_id=turn.request_id,
        arrival_s=turn.arrival_s,
        input_tokens=inputs,
        output_tokens=outputs,
        model=model,
        turns=2 * turn.number + 1,
        session_id=turn.session,
        parent_id=None if parent is None else parent.request_id,
        think_time_s=0.0 if parent is None else max(turn.arrival_s - parent.arrival_s, 0.0),
        block_hashes=full,
        block_tokens=BLOCK_TOKENS if full else 0,
    )


def _ticks(rows: Iterable[Timed]) -> Iterator[tuple[list[Timed], float]]:
    """Rows of equal time, and the seconds until the next time: a tick at most."""
    before: list[Timed] = []
    for time_ms, group in groupby(rows, key=lambda item: item[0]):
        if before:
            yield before, min(max((time_ms - before[0][0]) / 1000.0, 0.0), TICK_S)
        before = list(group)
    if before:
        yield before, TICK_S


def _spread(time_ms: int, length_s: float, count: int) -> list[float]:
    """Offsets for `count` requests within `length_s`, sorted; seeded by the time itself."""
    if count == 1:
        return [0.0]
    offsets: list[float] = np.sort(np.random.default_rng(time_ms).uniform(0.0, length_s, count)).tolist()
    return offsets
