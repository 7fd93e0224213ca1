"""Agent sessions: chains of calls, each sent when the agent has worked through the last answer."""

from __future__ import annotations

from collections.abc import Iterator

from steersman.traces.readers.fields import Fields
from steersman.traces.readers.order import Placed, reordered
from steersman.traces.readers.source import Source
from steersman.traces.schema import Priority, Request

COLUMNS = ("agent", "session", "turn", "t_in_session_s", "input_tokens", "output_tokens")
"""And `hash_ids`: chained ids of full 64-token prompt blocks."""

BLOCK_TOKENS = 64
STAGGER_S = 60.0
"""The recording knows times within a session only: session k starts k times this after the first."""


def read_agents(source: Source, model: str) -> Iterator[Placed]:
    """Sessions one after the other in the file, each in order of its turns.

    The think time is the gap between two calls' starts: the recording has no end times, so it
    includes the answer's generation.
    """
    return reordered(_sessions(source, model))


def _sessions(source: Source, model: str) -> Iterator[tuple[float, float, Placed]]:
    fields = Fields(str(source.path))
    seen: set[str] = set()
    session, previous = "", Request("", 0.0, 1)
    for place, row in source.rows():
        at = fields.at(place, row)
        name = f"{at.text('agent')}-{at.text('session')}"
        if name != session:
            if name in seen:
                raise at.error(f"session '{name}' goes on after another began; group rows by session")
            seen.add(name)
            session, previous = name, Request("", 0.0, 1)
        start_s = (len(seen) - 1) * STAGGER_S
        request = _call(at, name, start_s, previous, model)
        if request.arrival_s < previous.arrival_s:
            raise at.error(f"'t_in_session_s' runs backwards in session '{name}'; order rows by turn")
        yield start_s, request.arrival_s, (place, request)
        previous = request


def _call(at: Fields, session: str, start_s: float, previous: Request, model: str) -> Request:
    turn = at.integer("turn")
    arrival_s = start_s + at.seconds("t_in_session_s")
    is_first = not previous.request_id
    tokens = at.tokens("input_tokens")
    hashes = tuple(at.hashes("hash_ids")[: tokens // BLOCK_TOKENS])
    return Request(
        request_id=f"{session}-{turn}",
        arrival_s=arrival_s,
        input_tokens=tokens,
        output_tokens=at.tokens("output_tokens"),
        model=model,
        tenant=at.text("agent"),
        priority=Priority.SEMI_INTERACTIVE,
        turns=2 * turn + 1,
        session_id=session,
        parent_id=None if is_first else previous.request_id,
        think_time_s=0.0 if is_first else max(arrival_s - previous.arrival_s, 0.0),
        block_hashes=hashes,
        block_tokens=BLOCK_TOKENS if hashes else 0,
    )
