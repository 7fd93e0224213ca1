from __future__ import annotations

import numpy as np
import pytest

from steersman.env.conversations import with_conversations
from steersman.traces.readers import load_trace
from steersman.traces.scenario import Conversations
from steersman.traces.trace import Trace

SETTINGS = Conversations()


@pytest.fixture(scope="module")
def plain() -> Trace:
    return load_trace("azure-chat").select(np.arange(3000))


@pytest.fixture(scope="module")
def laid(plain: Trace) -> Trace:
    return with_conversations(plain, SETTINGS)


def blocks(trace: Trace, row: int) -> list[int]:
    found: list[int] = trace.block_hashes[
        trace.block_offsets[row] : trace.block_offsets[row + 1]
    ].tolist()
    return found


def test_arrivals_and_answers_stay(plain: Trace, laid: Trace) -> None:
    assert np.array_equal(plain.arrival_s, laid.arrival_s)
    assert np.array_equal(plain.output_tokens, laid.output_tokens)


def test_a_turn_extends_its_parents_prompt(laid: Trace) -> None:
    children = np.flatnonzero(laid.parent >= 0)
    assert len(children) > 1000
    for row in children[:300].tolist():
        parent = int(laid.parent[row])
        assert blocks(laid, row)[: len(blocks(laid, parent))] == blocks(laid, parent)
        assert laid.input_tokens[row] > laid.input_tokens[parent] + laid.output_tokens[parent] - 1
        assert laid.session[row] == laid.session[parent]
        assert laid.turns[row] == laid.turns[parent] + 2


def test_roots_share_system_prompts_and_nothing_else(laid: Trace) -> None:
    common = SETTINGS.system_tokens // SETTINGS.block_tokens
    roots = np.flatnonzero(laid.parent < 0).tolist()
    systems = {tuple(blocks(laid, row)[:common]) for row in roots if len(blocks(laid, row)) >= common}
    assert len(systems) == SETTINGS.system_prompts
    tails = [h for row in roots for h in blocks(laid, row)[common:]]
    assert len(set(tails)) == len(tails)


def test_hashes_cover_full_blocks_and_are_63_bits(laid: Trace) -> None:
    assert np.array_equal(np.diff(laid.block_offsets), laid.input_tokens // SETTINGS.block_tokens)
    assert laid.block_hashes.min() >= 0


def test_it_is_the_same_every_time(plain: Trace, laid: Trace) -> None:
    assert with_conversations(plain, SETTINGS).fingerprint() == laid.fingerprint()
