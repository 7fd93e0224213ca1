from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.evaluate.contestants import LEARNED, contestants
from steersman.agents.evaluate.run import Protocol, evaluate
from steersman.agents.guard import Guard
from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.learned.shipped import DIRECTORY, MODEL_CARD, load_shipped
from steersman.agents.policy import Policy
from steersman.agents.policy_checker import check_policy
from steersman.agents.samples import sample_observation
from steersman.agents.train_settings import load_train_settings
from steersman.env.scenario import load_scenario


def test_the_shipped_policy_keeps_the_contract_of_policies() -> None:
    bundle = load_shipped()

    def guarded(seed: int) -> Policy:
        learned = LearnedPolicy.from_bundle(bundle, np.random.default_rng(seed))
        return Guard.make(learned, seed=seed, clock=lambda: 0.0)

    check_policy(guarded)


def test_its_card_names_its_version_and_how_to_train_it_again() -> None:
    card = (DIRECTORY / MODEL_CARD).read_text(encoding="utf-8")
    bundle = load_shipped()
    assert bundle.version in card
    assert "steersman train policy --config shipped" in card
    settings = load_train_settings("shipped")
    assert bundle.manifest.trained_on["seed"] == settings.seed
    assert bundle.manifest.trained_on["also"] == list(settings.also)


def test_without_a_bundle_the_shipped_policy_is_evaluated_and_beats_chance() -> None:
    protocol = Protocol(loads=(0.9,), seeds=(0,), requests=300, window_s=0.0, warmup_s=5.0)
    table = evaluate(contestants([LEARNED, "random"]), [load_scenario("mixed")], protocol)
    assert table.ratio(LEARNED, "random").value < 0.8
    (cell,) = table.cells
    trips = sum(table.fallbacks(LEARNED, cell).values())
    assert trips < 0.1 * 300


@pytest.mark.parametrize("count", [1, 2, 64, 256])
def test_it_serves_pools_of_any_size(count: int) -> None:
    policy = LearnedPolicy.from_bundle(load_shipped(), np.random.default_rng(0))
    observation = sample_observation(np.random.default_rng(1), count)
    heads = policy.head_scores(observation)
    assert heads.shape[1] == count
    assert np.isfinite(heads[:, observation.mask]).all()
    assert observation.mask[policy.decide(observation).choice]
