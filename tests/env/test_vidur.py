"""Vidur's rules, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.vidur import Played, play
from steersman.env.vidur_batches import FEATURES

COST = np.array([0.01, 2e-5, 4e-5, 1.5e-5, 9e-8, 3e-9])


def _play(*rows: tuple[float, int, int], **options: object) -> Played:
    at_s, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    rules = {"scheduler": "vllm", "router": "round_robin", "replicas": 1} | options
    return play(at_s, prompt, output, COST, **rules)  # type: ignore[arg-type]


def _prompts_s(*prompts: int) -> float:
    tokens = sum(prompts)
    rounded = -(-tokens // 8) * 8
    squared = (1.1 if len(prompts) > 1 else 1.0) * sum(p * p for p in prompts)
    over = (max(rounded - 128, 0), max(-(-tokens // 128) * 128 - 128, 0))
    return float(np.dot(COST, [1, rounded, *over, 0, squared]))


def _decodes_s(*contexts: int) -> float:
    count = len(contexts)
    mean = -(-(sum(contexts) // count) // 64) * 64
    factor = 1.1 if count > 1 else 1.0
    return float(np.dot(COST, [1, -(-count // 8) * 8, 0, 0, factor * count * mean, 0]))


def test_one_request_alone() -> None:
    played = _play((0.0, 300, 3))
    assert played.ttft_s[0] == pytest.approx(_prompts_s(300))
    assert played.e2e_s[0] == pytest.approx(_prompts_s(300) + _decodes_s(301) + _decodes_s(302))


def test_prompts_join_while_their_number_times_the_longest_fits() -> None:
    # The first is alone in its iteration; 3 x 1300 fits 4096, 4 x 1300 does not.
    played = _play((0.0, 100, 1), *((0.001, p, 1) for p in (1300, 900, 900, 900)))
    first_s = _prompts_s(100)
    trio_s = first_s + _prompts_s(1300, 900, 900)
    assert played.ttft_s[1:4] + 0.001 == pytest.approx([trio_s] * 3)
    assert played.ttft_s[4] + 0.001 == pytest.approx(trio_s + _prompts_s(900))


def test_the_cap_counts_what_runs() -> None:
    played = _play((0.0, 100, 40), (0.001, 100, 40), (0.002, 100, 1), batch_cap=2)
    assert played.ttft_s[2] > played.e2e_s[0] - 0.01


def test_sarathi_decodes_first_and_cuts_prompts() -> None:
    played = _play((0.0, 100, 2), (0.001, 600, 1), scheduler="sarathi", chunk_tokens=512)
    first_s = _prompts_s(100)
    cost = np.dot(COST, [1, 512, 512 - 128, 512 - 128, 1 * 128, 511**2])  # one decode, 511 of the prompt
    last = 600 - 511
    end = np.dot(COST, [1, -(-last // 8) * 8, 0, 0, 0, last * (last + 2 * 511)])
    assert played.e2e_s[0] == pytest.approx(first_s + cost)
    assert played.ttft_s[1] + 0.001 == pytest.approx(first_s + cost + end)


def test_two_stages_work_on_two_batches_at_once() -> None:
    played = _play((0.0, 1000, 1), (0.001, 1000, 1), stages=2)
    stage_s = _prompts_s(1000)
    assert played.ttft_s[0] == pytest.approx(2 * stage_s)
    assert played.ttft_s[1] + 0.001 == pytest.approx(3 * stage_s)


def test_lor_sees_only_who_waits_and_lorfixed_who_runs_too() -> None:
    rows = tuple((0.001 * i, 500, 200) for i in range(2))
    waiting = _play(*rows, router="lor", replicas=2)
    fixed = _play(*rows, router="lorfixed", replicas=2)
    assert fixed.e2e_s[1] == pytest.approx(fixed.e2e_s[0])  # each has a replica of its own
    assert waiting.e2e_s[1] > fixed.e2e_s[1]  # nobody waits on the first, so it gets both


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.05), st.integers(1, 3000), st.integers(1, 60)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["vllm", "sarathi"]),
    st.sampled_from(["round_robin", "lor", "lorfixed"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(2, 8),
)
def test_every_request_ends_and_features_add_up(
    rows: list[tuple[float, int, int]], scheduler: str, router: str, replicas: int, stages: int, cap: int
) -> None:
    at_s = np.cumsum([gap for gap, *_ in rows])
    timed = [(float(at), p, o) for at, (_, p, o) in zip(at_s, rows, strict=True)]
    played = _play(
        *timed, scheduler=scheduler, router=router, replicas=replicas, stages=stages, batch_cap=cap
    )
    assert played.features.shape == (len(rows), 2, len(FEATURES))
    assert (played.ttft_s > 0).all()
    assert (played.e2e_s >= played.ttft_s).all()
    np.testing.assert_allclose(played.features[:, 0] @ COST, played.ttft_s, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(played.features[:, 1] @ COST, played.e2e_s, rtol=1e-6, atol=1e-9)
