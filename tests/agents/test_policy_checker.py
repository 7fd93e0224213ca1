from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from steersman.agents.policies import make_policy
from steersman.agents.policies.marginal import MarginalCost, MarginalCostOptions
from steersman.agents.policy import NO_CANDIDATE, Policy, argmax_decision
from steersman.agents.policy_checker import PolicyContractError, check_policy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation


class Custom:
    """A policy made of one function of the observation and a generator."""

    name = "custom"
    version = ""

    def __init__(self, rule: Callable[[Observation, np.random.Generator], Decision], seed: int) -> None:
        self._rule = rule
        self._rng = np.random.default_rng(seed)

    def decide(self, observation: Observation) -> Decision:
        if not observation.mask.any():
            return Decision(NO_CANDIDATE, self.name)
        return self._rule(observation, self._rng)


def least_running(observation: Observation, rng: np.random.Generator) -> Decision:
    return argmax_decision(
        -observation.replicas[:, REPLICA_INDEX["running"]], observation.mask, rng, policy="custom"
    )


def ignores_the_mask(observation: Observation, rng: np.random.Generator) -> Decision:
    return Decision(int(rng.integers(len(observation.mask))), "custom")


def wrong_propensity(observation: Observation, rng: np.random.Generator) -> Decision:
    allowed = np.flatnonzero(observation.mask)
    return Decision(int(rng.choice(allowed)), "custom")


def zero_propensity(observation: Observation, rng: np.random.Generator) -> Decision:
    return Decision(int(np.flatnonzero(observation.mask)[0]), "custom", propensity=0.0)


def writes(observation: Observation, rng: np.random.Generator) -> Decision:
    observation.replicas[:, 0] = 0.0
    return least_running(observation, rng)


def by_position(observation: Observation, rng: np.random.Generator) -> Decision:
    return Decision(int(np.flatnonzero(observation.mask)[0]), "custom")


def numpy_index(observation: Observation, rng: np.random.Generator) -> Decision:
    return Decision(np.flatnonzero(observation.mask)[0], "custom")


def own_generator(observation: Observation, rng: np.random.Generator) -> Decision:
    return make_policy("random", seed=np.random.default_rng()).decide(observation)


def fragile(observation: Observation, rng: np.random.Generator) -> Decision:
    scores = np.where(observation.mask, observation.replicas[:, 0], -np.inf)
    return Decision(int(np.flatnonzero(scores == scores.max())[0]), "custom")


def short_scores(observation: Observation, rng: np.random.Generator) -> Decision:
    decision = least_running(observation, rng)
    return Decision(
        decision.choice, "custom", propensity=decision.propensity, scores=np.zeros(0, np.float32)
    )


def test_a_sound_policy_of_a_user_passes() -> None:
    report = check_policy(lambda seed: Custom(least_running, seed))
    assert report.decisions == 200
    assert 0 < report.latency_p50_us <= report.latency_p99_us


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ignores_the_mask, "which the mask forbids"),
        (wrong_propensity, r"propensity|reordering"),
        (zero_propensity, r"not in \(0, 1\]"),
        (writes, r"changed observation\.replicas"),
        (by_position, "equivariant=False"),
        (numpy_index, "is not an int"),
        (own_generator, "same seed"),
        (fragile, "NaN features raise"),
        (short_scores, "scores have shape"),
    ],
)
def test_every_broken_rule_is_named(
    rule: Callable[[Observation, np.random.Generator], Decision], message: str
) -> None:
    with pytest.raises(PolicyContractError, match=message):
        check_policy(lambda seed: Custom(rule, seed))


def test_a_choice_without_candidates_is_refused() -> None:
    class Eager(Custom):
        def decide(self, observation: Observation) -> Decision:
            if not observation.mask.any():
                return Decision(0, self.name)
            return super().decide(observation)

    with pytest.raises(PolicyContractError, match="every replica masked"):
        check_policy(lambda seed: Eager(least_running, seed))


def test_round_robin_needs_the_opt_out() -> None:
    with pytest.raises(PolicyContractError, match="equivariant=False"):
        check_policy(lambda seed: make_policy("round-robin", seed=seed))


def test_together_must_be_decide() -> None:
    class Half(MarginalCost):
        """Overrides what is asked alone, and not what is asked together."""

        def decide(self, observation: Observation) -> Decision:
            return argmax_decision(
                self.cost(observation).astype(np.float32), observation.mask, self._rng, policy=self.name
            )

    def make(seed: int) -> Policy:
        return Half(MarginalCostOptions(), np.random.default_rng(seed))

    with pytest.raises(PolicyContractError, match="override both or neither"):
        check_policy(make)
