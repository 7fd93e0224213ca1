"""Figures of lengths: they see what is there to see, and nothing where there is nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steersman.agents.evaluate.length_figures import (
    SERVEGEN,
    Prompt,
    judge_text,
    read_prompts,
    remaining_error,
    turns_error,
)
from steersman.traces.readers import load_trace
from steersman.traces.schema import Request
from steersman.traces.trace import Trace

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "lengths"


def prompts(count: int, *, telling: bool) -> list[Prompt]:
    """Of ten kinds of words, each with its own length where they tell."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        kind = number % 10
        usual = 40.0 * (1 + kind) if telling else 200.0
        lengths = np.maximum(rng.normal(usual, 0.2 * usual, 2), 1.0).astype(int).tolist()
        made.append(Prompt(f"please word{kind} this", dict(zip(("m", "n"), lengths, strict=True))))
    return made


def test_words_that_tell_are_seen_and_others_are_not() -> None:
    told = judge_text(prompts(300, telling=True), 0)
    assert told["kendall_tau_text"] > 0.6
    assert told["pinball_ratio_text_constant"] < 0.6
    silent = judge_text(prompts(300, telling=False), 0)
    assert abs(silent["kendall_tau_text"]) < 0.25
    assert silent["pinball_ratio_text_rolling"] < 1.1


def test_an_update_while_it_streams_is_better_than_none() -> None:
    ratios = remaining_error(load_trace("azure-chat").select(np.arange(4_000)))
    assert min(ratios.values()) < 0.95
    assert max(ratios.values()) < 1.02


@pytest.mark.parametrize("lengths", [(4, 30), (12, 12)])
def test_turns_of_agents_with_habits_are_foreseen(lengths: tuple[int, int]) -> None:
    requests = [
        Request(
            f"{session}-{turn}",
            1000.0 * session + turn,
            10,
            output_tokens=5,
            tenant=f"agent{session % 2}",
            session_id=f"s{session}",
        )
        for session in range(60)
        for turn in range(lengths[session % 2])
    ]
    errors = turns_error(Trace.from_requests("agents", requests), 0)
    assert errors["rmse_ratio_constant"] < 0.8
    assert errors["rmse_ratio_by_agent"] < 0.9


def test_the_data_are_there() -> None:
    for workload in SERVEGEN:
        (path,) = DATA.glob(f"servegen_{workload}_*")
        assert len(set(load_trace(path, limit=2_000).tenants)) > 3
    assert len(load_trace(DATA / "sharegpt.csv.gz", limit=10)) == 10
    assert load_trace(DATA / "mooncake_sessions.csv.gz", limit=1_000).sessions
    assert len(load_trace(DATA / "agent_sessions.jsonl.gz").sessions) == 45
    assert len(read_prompts(DATA / "arena_hard.jsonl.gz")) == 499
