from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.evaluate.constants import load_tuned, save_tuned
from steersman.agents.evaluate.contestants import contestants
from steersman.agents.evaluate.lockstep import Entry, play
from steersman.agents.evaluate.run import evaluate
from steersman.agents.evaluate.spaces import SPACES, options_at, place_of, published, space_of
from steersman.agents.evaluate.tune import POPULATION, TUNING, Search, Tuned, tune, tune_together
from steersman.agents.policies import POLICY_NAMES, make_policy
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario

PLAY = "steersman.agents.evaluate.tune.play"
SHORT = replace(TUNING, loads=(1.1,), requests=60, warmup_s=4.0, tail_s=0.0)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return replace(load_scenario("tiny"), saturation_rps=14.0)


@pytest.mark.parametrize("policy", SPACES)
@given(seed=st.integers(0, 2**16))
def test_every_point_of_a_space_is_a_policy(policy: str, seed: int) -> None:
    space = space_of(policy)
    rng = np.random.default_rng(seed)
    for point in (np.zeros(len(space)), np.ones(len(space)), rng.random(len(space))):
        assert make_policy(policy, seed=0, options=options_at(space, point)).name == policy


@pytest.mark.parametrize("policy", SPACES)
def test_the_published_constants_lie_in_their_space(policy: str) -> None:
    space, options = space_of(policy), published(policy)
    again = options_at(space, place_of(space, options))
    assert again.keys() == options.keys()
    for key, value in options.items():
        expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
        assert again[key] == expected


def test_what_cannot_be_tuned_says_so() -> None:
    with pytest.raises(ConfigError, match="'vllm-dp' has no constants; tunable are"):
        space_of("vllm-dp")
    with pytest.raises(ConfigError, match="'vlm' is unknown"):
        space_of("vlm")
    assert set(SPACES) <= set(POLICY_NAMES)


def test_tuning_never_ends_worse_than_it_began_and_repeats_itself(scenario: Scenario) -> None:
    runs: list[float] = []
    first = tune("prequal", [scenario], protocol=SHORT, evaluations=20, on_progress=runs.append)
    assert first.score <= 1.0
    assert first.evaluations == 20
    assert sum(runs) >= 20
    assert tune("prequal", [scenario], protocol=SHORT, evaluations=20) == first
    with pytest.raises(ConfigError, match="multiple of 10"):
        tune("prequal", [scenario], protocol=SHORT, evaluations=25)


def test_an_interrupted_search_goes_on_where_it_was(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "scores.jsonl"
    whole = tune("llm-d-default", [scenario], protocol=SHORT, evaluations=30)
    played: list[int] = []

    def counted(entries: list[Entry], *rest: Any) -> object:
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(len(entries))
        return play(entries, *rest)

    monkeypatch.setattr(PLAY, counted)
    with pytest.raises(KeyboardInterrupt):
        tune("llm-d-default", [scenario], protocol=SHORT, evaluations=30, notebook=book)
    with book.open("a") as file:
        file.write('{"task": "cut sho')
    before = sum(played)
    played.clear()
    resumed = tune("llm-d-default", [scenario], protocol=SHORT, evaluations=30, notebook=book)
    assert resumed == whole
    assert before >= POPULATION
    assert sum(played) <= 30 - before
    played.clear()
    assert tune("llm-d-default", [scenario], protocol=SHORT, evaluations=30, notebook=book) == whole
    assert not any(played), "all is known"


def test_searches_side_by_side_find_what_each_finds_alone(scenario: Scenario) -> None:
    other = replace(scenario, name="other", saturation_rps=10.0)
    runs: list[float] = []
    searches = [Search("prequal", (scenario,)), Search("llm-d-sticky", (scenario, other))]
    both = tune_together(searches, protocol=SHORT, evaluations=20, on_progress=runs.append)
    assert both[0] == tune("prequal", [scenario], protocol=SHORT, evaluations=20)
    assert both[1] == tune("llm-d-sticky", [scenario, other], protocol=SHORT, evaluations=20)
    assert sum(runs) == pytest.approx(21 + 2 * 21)


ABOUT = {"scenarios": ["tiny"], "requests": 60, "loads": [0.8], "seed": 0, "command": "c"}


def test_constants_are_kept_in_files_and_found_again(tmp_path: Path) -> None:
    tuned = Tuned("prequal", {"hot_quantile": 0.7, "latency": "ttft"}, 0.91234, 200)
    path = save_tuned(tuned, "tiny", ABOUT, tmp_path)
    assert path == tmp_path / "tiny" / "prequal.yaml"
    found = load_tuned("prequal", "tiny", tmp_path)
    assert found.options == tuned.options
    assert found.score == 0.9123
    with pytest.raises(ConfigError, match=r"not tuned for 'all'.*--policy prequal --once"):
        load_tuned("prequal", "all", tmp_path)


def test_a_tuned_contestant_has_the_constants_of_the_scenario(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steersman.agents.evaluate import contestants as by_name

    options: dict[str, float | int | str] = {"sticky_match": 0.5}
    for where in ("tiny", "all"):
        save_tuned(Tuned("llm-d-sticky", options, 0.9, 10), where, ABOUT, tmp_path)

    def find(policy: str, where: str) -> object:
        return load_tuned(policy, where, tmp_path)

    monkeypatch.setattr(by_name, "load_tuned", find)
    names = ["llm-d-sticky", "llm-d-sticky:tuned", "llm-d-sticky:tuned-once"]
    table = evaluate(contestants(names), [scenario], SHORT)
    cell = table.cells[0]
    assert table.mean(names[1], cell) == table.mean(names[2], cell)
    with pytest.raises(ConfigError, match="not tuned for 'all'"):
        contestants(["p2c:tuned-once"])
    with pytest.raises(ConfigError, match="not tuned for 'tiny'"):
        evaluate(contestants(["p2c:tuned"]), [scenario], SHORT)
