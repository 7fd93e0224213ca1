"""Conversations with shared system prompts, laid over a trace of single requests.

Public chat traces with lengths seldom say which requests belong together. Here every request of a trace
keeps its arrival, its answer's length and its class, and becomes a turn: of a new conversation, or of
one that is open. A conversation's prompt is a system prompt, all it has said so far, and something new:
the recorded prompt for a first turn, a quarter of it for a later one. Prompts of one conversation are
prefixes of each other; those of different conversations share their system prompt's blocks.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from steersman.traces.scenario import Conversations
from steersman.traces.trace import Trace

FOLLOW_UP = 0.25
"""New tokens of a later turn, as a share of the recorded prompt."""
LONGEST_PROMPT = 16_384
"""A conversation ends before its prompt exceeds this."""
NOMINAL_TTFT_S = 0.5
NOMINAL_TPOT_S = 0.03
"""How long an answer is taken to last when a later turn is matched to it."""
_SEED = 7
"""The overlay is part of the scenario: the same for every run."""


def with_conversations(trace: Trace, settings: Conversations) -> Trace:
    """The same arrivals, as turns of conversations.

    Turns follow their parent by an exponential think time: a request continues the open conversation
    whose next turn is due. Sessions that the trace has are replaced.
    """
    rng = np.random.default_rng(_SEED)
    n = len(trace)
    going_on = rng.random(n) < 1.0 - 1.0 / settings.turns
    think_s = rng.exponential(settings.think_time_s, n)
    popularity = 1.0 / np.arange(1, settings.system_prompts + 1)
    system = rng.choice(settings.system_prompts, size=n, p=popularity / popularity.sum())
    prompt = trace.input_tokens.copy()
    session = np.empty(n, dtype=np.int64)
    parent = np.full(n, -1, dtype=np.int64)
    turns = np.ones(n, dtype=np.int32)
    gap_s = np.zeros(n)
    due: list[tuple[float, int]] = []  # a heap
    roots: list[int] = []
    for row, arrival_s in enumerate(trace.arrival_s.tolist()):
        last = _take_due(due, arrival_s)
        if last < 0:
            session[row] = len(roots)
            roots.append(row)
            prompt[row] += settings.system_tokens
        else:
            session[row] = session[last]
            parent[row] = last
            turns[row] = turns[last] + 2  # the answer is a message too
            system[row] = system[last]
            new = max(int(trace.input_tokens[row] * FOLLOW_UP), 1)
            prompt[row] = prompt[last] + max(int(trace.output_tokens[last]), 0) + new
            gap_s[row] = think_s[last]
        if going_on[row] and prompt[row] < LONGEST_PROMPT:
            answer_s = NOMINAL_TTFT_S + NOMINAL_TPOT_S * float(trace.output_tokens[row])
            heapq.heappush(due, (arrival_s + answer_s + float(think_s[row]), row))
    offsets, hashes = _blocks(prompt, session, system, settings)
    return trace.replace(
        name=f"{trace.name}+conversations",
        input_tokens=prompt,
        session=session,
        sessions=tuple(f"conversation-{root}" for root in roots),
        parent=parent,
        think_time_s=gap_s,
        turns=turns,
        block_offsets=offsets,
        block_hashes=hashes,
        block_tokens=settings.block_tokens,
    )


def _take_due(due: list[tuple[float, int]], now_s: float) -> int:
    """The last row of the conversation whose turn has been due longest; -1 if none is."""
    return heapq.heappop(due)[1] if due and due[0][0] <= now_s else -1


def _blocks(
    prompt: NDArray[np.int64],
    session: NDArray[np.int64],
    system: NDArray[np.int64],
    settings: Conversations,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and hashes of all full blocks: of the system prompt, then of the conversation."""
    counts = prompt // settings.block_tokens
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    position = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)
    common = position < settings.system_tokens // settings.block_tokens
    owner = np.where(
        common, np.repeat(system, counts), np.repeat(session, counts) + settings.system_prompts
    )
    return offsets, _mixed(owner.astype(np.uint64) << np.uint64(24) | position.astype(np.uint64))


def _mixed(key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """SplitMix64's finaliser: 63 well-spread bits, distinct keys staying distinct but for one bit."""
    z = key + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
