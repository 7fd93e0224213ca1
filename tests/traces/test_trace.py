"""The columnar trace: nothing is lost, parents stay linked, parts add up."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.errors import TraceError
from steersman.traces.schema import Request
from steersman.traces.trace import Trace
from tests.traces.strategies import requests


@given(requests())
def test_requests_survive_the_round_trip(given_requests: list[Request]) -> None:
    trace = Trace.from_requests("t", given_requests)
    assert list(trace.requests()) == given_requests
    assert [trace.request(i) for i in range(len(trace))] == given_requests


@given(requests(), st.randoms())
def test_order_of_input_does_not_matter(given_requests: list[Request], rng: random.Random) -> None:
    spaced = [
        dataclasses.replace(r, arrival_s=float(i)) for i, r in enumerate(given_requests)
    ]  # without ties, which keep their order
    shuffled = spaced.copy()
    rng.shuffle(shuffled)
    assert (
        Trace.from_requests("a", shuffled).fingerprint()
        == Trace.from_requests("b", spaced).fingerprint()
    )


@given(requests(), st.data())
def test_select_keeps_rows_and_relinks_parents(
    given_requests: list[Request], data: st.DataObject
) -> None:
    trace = Trace.from_requests("t", given_requests)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(trace), max_size=len(trace))), dtype=bool
    )
    kept = {r.request_id for r, keep in zip(given_requests, mask, strict=True) if keep}
    expected = [
        dataclasses.replace(r, parent_id=r.parent_id if r.parent_id in kept else None)
        for r in given_requests
        if r.request_id in kept
    ]
    assert list(trace.select(mask).requests()) == expected
    assert list(trace.select(np.flatnonzero(mask)[::-1]).requests()) == expected


@given(requests())
def test_split_is_a_partition_in_order(given_requests: list[Request]) -> None:
    trace = Trace.from_requests("t", given_requests)
    parts = trace.split((0.6, 0.15, 0.25))
    assert sorted(i for part in parts for i in part.request_ids) == sorted(trace.request_ids)
    for part in parts:
        assert (part.arrival_s >= 0).all()
    used = [{part.sessions[code] for code in part.session if code >= 0} for part in parts]
    assert sum(map(len, used)) == len(set().union(*used))  # sessions stay whole
    assert sum(int((part.parent >= 0).sum()) for part in parts) == int((trace.parent >= 0).sum())


def test_split_without_sessions_cuts_time() -> None:
    trace = Trace.from_requests("t", [Request(f"r{i}", 10.0 + i, 1) for i in range(101)])
    parts = trace.split((0.6, 0.15, 0.25))
    assert [len(part) for part in parts] == [60, 15, 26]
    assert [part.arrival_s[0] for part in parts] == [0.0, 0.0, 0.0]
    assert [len(part) for part in trace.split((0.5,))] == [50]


def test_between_rebases_time() -> None:
    trace = _simple(5)
    part = trace.between(1.0, 3.0)
    assert part.request_ids == ("r1", "r2")
    assert part.arrival_s.tolist() == [0.0, 1.0]
    assert part.parent.tolist() == [-1, 0]


@pytest.mark.parametrize("fractions", [(0.6, 0.6), (0.0, 1.0), (-0.1,), ()])
def test_impossible_fractions_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="fractions"):
        _simple(5).split(fractions)


@given(requests().filter(bool), st.data())
def test_fingerprint_tells_any_change(given_requests: list[Request], data: st.DataObject) -> None:
    trace = Trace.from_requests("t", given_requests)
    assert trace.fingerprint() == trace.replace(name="other").fingerprint()
    row = data.draw(st.integers(0, len(trace) - 1))
    changed = list(given_requests)
    changed[row] = dataclasses.replace(changed[row], input_tokens=changed[row].input_tokens + 1)
    assert Trace.from_requests("t", changed).fingerprint() != trace.fingerprint()


def test_broken_invariants_are_refused() -> None:
    first = Request("a", 0.0, 1)
    with pytest.raises(TraceError, match="'a' appears twice"):
        Trace.from_requests("t", [first, first])
    with pytest.raises(TraceError, match="before its parent"):
        Trace.from_requests("t", [Request("b", 0.0, 1, parent_id="c"), Request("c", 1.0, 1)])
    with pytest.raises(TraceError, match="sorted"):
        Trace.from_requests("t", [Request("a", float("nan"), 1)])
    with pytest.raises(TraceError, match="one block size"):
        Trace.from_requests(
            "t",
            [
                Request("a", 0.0, 64, block_hashes=(1,), block_tokens=16),
                Request("b", 1.0, 64, block_hashes=(1,), block_tokens=32),
            ],
        )
    with pytest.raises(TraceError, match="column 'priority'"):
        _simple(2).replace(priority=np.zeros(2))
    with pytest.raises(TraceError, match="frame"):
        _simple(2).replace(block_offsets=np.array([0, 1, 0]))


def test_empty_trace() -> None:
    trace = Trace.from_requests("t", [])
    assert len(trace) == 0
    assert list(trace.requests()) == []
    assert [len(part) for part in trace.split((0.5, 0.5))] == [0, 0]
    assert trace.summary()["requests"] == 0


@given(requests())
def test_summary_is_json_and_consistent(given_requests: list[Request]) -> None:
    summary = Trace.from_requests("t", given_requests).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["sessions"] == len({r.session_id for r in given_requests} - {None})
    assert sum(summary["priorities"].values()) == summary["requests"] == len(given_requests)


def test_prefix_share_counts_leading_seen_blocks() -> None:
    blocks = [(1, 2, 3), (1, 2, 4), (), (5, 1), (1, 2, 3)]
    trace = Trace.from_requests(
        "t",
        [
            Request(f"r{i}", float(i), 48, block_hashes=b, block_tokens=16 if b else 0)
            for i, b in enumerate(blocks)
        ],
    )
    # 0 + 2 + 0 + 0 (its first block is new) + 3 blocks of 16, over 5 prompts of 48 tokens
    assert trace.summary()["prefix_share"] == pytest.approx(5 * 16 / (5 * 48))


def test_absurd_numbers_of_tools_do_not_wrap_around() -> None:
    assert Trace.from_requests("t", [Request("a", 0.0, 1, tools=100_000)]).tools.tolist() == [32_767]


def _simple(n: int) -> Trace:
    return Trace.from_requests(
        "t",
        [
            Request(f"r{i}", float(i), 10, 5, session_id="s", parent_id=f"r{i - 1}" if i else None)
            for i in range(n)
        ],
    )
