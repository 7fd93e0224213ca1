"""An executable form of the policy contract (`agents/policy.py`), for our policies and yours.

::

    from steersman.agents.policy_checker import check_policy

    report = check_policy(lambda seed: MyPolicy(seed))

A violation raises `PolicyContractError`, which says what was asked and what came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.batch import BatchPolicy, Deciders
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.agents.samples import sample_observation
from steersman.traces.errors import SteersmanError
from steersman.traces.schema import Decision, Observation

MakePolicy = Callable[[int], Policy]
"""Makes a fresh policy from a seed."""

_DRAWS = 400
"""Decisions from which the frequency of each choice is compared with its propensity."""


class PolicyContractError(SteersmanError):
    """A policy broke its contract."""


@dataclass(frozen=True)
class CheckReport:
    """What the checker measured; nothing in it is a verdict."""

    decisions: int
    latency_p50_us: float
    """Of `decide` on 8 replicas, in microseconds."""
    latency_p99_us: float


def check_policy(make: MakePolicy, *, equivariant: bool = True, seed: int = 0) -> CheckReport:
    """Check that a policy keeps the contract.

    Args:
        make: a fresh policy from a seed.
        equivariant: False for policies that go by position (round robin, hashing): neither
            permutations nor the frequencies of choices are checked then.
        seed: of the observations asked.

    Raises:
        PolicyContractError: the first violation.
    """
    rng = np.random.default_rng(seed)
    observations = [sample_observation(rng, int(n)) for n in rng.integers(1, 33, size=40)]
    observations += [sample_observation(rng, 8, allowed=m) for m in (1, 2, 8)]
    if not isinstance(make(seed), Policy):
        raise PolicyContractError("not a Policy: it needs `name`, `version` and `decide(observation)`")
    policy = make(seed)
    for observation in observations:
        _check_decision(policy, observation)
    _check_empty(make(seed), rng)
    _check_determinism(make, observations, seed)
    _check_broken_features(make(seed), rng)
    _check_together(make, rng)
    if equivariant:
        for observation in (sample_observation(rng, 6), sample_observation(rng, 5, allowed=5)):
            _check_equivariance(make, observation, rng)
            _check_propensity(make(seed), observation)
    return _measure(make(seed), rng)


def _check_decision(policy: Policy, observation: Observation) -> Decision:
    before = _copy(observation)
    decision = policy.decide(observation)
    for part in ("replicas", "request", "pool", "mask"):
        if not np.array_equal(
            getattr(before, part), getattr(observation, part), equal_nan=part != "mask"
        ):
            raise PolicyContractError(
                f"{policy.name}: decide() changed observation.{part}; copy it first"
            )
    mask = observation.mask
    choice: object = decision.choice
    # A numpy integer would pass for an index, and then break the outcome log.
    if type(choice) is not int or not 0 <= choice < len(mask):
        raise PolicyContractError(
            f"{policy.name}: choice {choice!r} is not an int in [0, {len(mask)}), "
            f"though {int(mask.sum())} replicas are allowed"
        )
    if not mask[decision.choice]:
        raise PolicyContractError(
            f"{policy.name}: chose replica {decision.choice}, which the mask forbids"
        )
    if not 0.0 < decision.propensity <= 1.0 + 1e-9:
        raise PolicyContractError(f"{policy.name}: propensity {decision.propensity} is not in (0, 1]")
    if mask.sum() == 1 and abs(decision.propensity - 1.0) > 1e-6:
        raise PolicyContractError(
            f"{policy.name}: propensity {decision.propensity} of the only candidate, expected 1"
        )
    if decision.scores is not None and decision.scores.shape != mask.shape:
        raise PolicyContractError(
            f"{policy.name}: scores have shape {decision.scores.shape}, expected {mask.shape}"
        )
    if not decision.policy:
        raise PolicyContractError(f"{policy.name}: the decision does not name its policy")
    return decision


def _check_empty(policy: Policy, rng: np.random.Generator) -> None:
    decision = policy.decide(sample_observation(rng, 4, allowed=0))
    if decision.choice != NO_CANDIDATE:
        raise PolicyContractError(
            f"{policy.name}: chose {decision.choice} with every replica masked, expected {NO_CANDIDATE}"
        )


def _check_determinism(make: MakePolicy, observations: list[Observation], seed: int) -> None:
    first, second = make(seed), make(seed)
    for i, observation in enumerate(observations):
        a, b = first.decide(observation), second.decide(observation)
        if (a.choice, a.propensity) != (b.choice, b.propensity):
            raise PolicyContractError(
                f"{first.name}: the same seed chose {a.choice}, then {b.choice}, at decision {i}; "
                "draw only from the given generator"
            )


def _check_broken_features(policy: Policy, rng: np.random.Generator) -> None:
    """One replica's features are NaN, then all: the choice must still be an allowed one."""
    for rows in (slice(0, 1), slice(None)):
        observation = sample_observation(rng, 4, allowed=4)
        observation.replicas[rows] = np.nan
        try:
            _check_decision(policy, observation)
        except PolicyContractError as error:
            raise PolicyContractError(f"{error} (with features that are NaN)") from None
        except (ValueError, IndexError, FloatingPointError, ZeroDivisionError) as error:
            raise PolicyContractError(f"{policy.name}: NaN features raise {error!r}") from None


def _check_together(make: MakePolicy, rng: np.random.Generator) -> None:
    """A `BatchPolicy` chooses together what each would have chosen alone."""
    alone = [make(seed) for seed in range(5)]
    if not isinstance(alone[0], BatchPolicy):
        return
    deciders = Deciders([make(seed) for seed in range(5)], [6] * 5)
    for _ in range(4):
        seen = [sample_observation(rng, 6, allowed=int(rng.integers(0, 7))) for _ in alone]
        batch = Observation(
            *(
                np.stack([getattr(one, part) for one in seen])
                for part in ("replicas", "request", "pool", "mask", "identity", "at_s")
            )
        )
        expected = [policy.decide(one).choice for policy, one in zip(alone, seen, strict=True)]
        choices = deciders.choices(batch, np.ones(len(seen), dtype=np.bool_)).tolist()
        if choices != expected:
            raise PolicyContractError(
                f"{alone[0].name}: together() chose {choices}, decide() {expected}, one by one; "
                "override both or neither"
            )


def _check_equivariance(make: MakePolicy, observation: Observation, rng: np.random.Generator) -> None:
    order = rng.permutation(len(observation.mask))
    moved = Observation(
        observation.replicas[order],
        observation.request,
        observation.pool,
        observation.mask[order],
        observation.identity,
        observation.at_s,
    )
    # Randomised policies draw other replicas under the same seed: compare what they may choose.
    here = _propensities(make, observation)
    there = {int(order[choice]): p for choice, p in _propensities(make, moved).items()}
    for choice in here.keys() & there.keys():
        if abs(here[choice] - there[choice]) > 1e-4:
            raise PolicyContractError(
                f"{make(0).name}: reordering the replicas moved the propensity of one from "
                f"{here[choice]:.4f} to {there[choice]:.4f}; say equivariant=False if that is meant"
            )
    rare = 0.2
    for choice in here.keys() ^ there.keys():
        if here.get(choice, there.get(choice, 0.0)) > rare:
            raise PolicyContractError(
                f"{make(0).name}: reordering the replicas changed the choice; "
                "say equivariant=False if that is meant"
            )


def _propensities(make: MakePolicy, observation: Observation) -> dict[int, float]:
    """Propensity of every choice that a hundred fresh policies make."""
    decisions = (make(seed).decide(observation) for seed in range(100))
    return {decision.choice: decision.propensity for decision in decisions}


def _check_propensity(policy: Policy, observation: Observation) -> None:
    """Choices must come as often as their propensity says, within five standard errors."""
    counts: NDArray[np.int64] = np.zeros(len(observation.mask), dtype=np.int64)
    stated: dict[int, float] = {}
    for _ in range(_DRAWS):
        decision = policy.decide(observation)
        counts[decision.choice] += 1
        stated[decision.choice] = decision.propensity
    for choice, propensity in stated.items():
        share = counts[choice] / _DRAWS
        error = np.sqrt(propensity * (1.0 - propensity) / _DRAWS)
        if abs(share - propensity) > 5.0 * error + 0.01:
            raise PolicyContractError(
                f"{policy.name}: chose replica {choice} in {share:.1%} of {_DRAWS} decisions, "
                f"but gives its propensity as {propensity:.4f}; "
                "a policy that goes by turns or position says equivariant=False"
            )


def _measure(policy: Policy, rng: np.random.Generator) -> CheckReport:
    observations = [sample_observation(rng, 8, allowed=8) for _ in range(20)]
    times = []
    for i in range(200):
        start = time.perf_counter()
        policy.decide(observations[i % len(observations)])
        times.append(time.perf_counter() - start)
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e6
    return CheckReport(len(times), float(p50), float(p99))


def _copy(observation: Observation) -> Observation:
    return Observation(
        observation.replicas.copy(),
        observation.request.copy(),
        observation.pool.copy(),
        observation.mask.copy(),
        observation.identity.copy(),
        observation.at_s,
    )
