"""`p2c` and `p2c-context`: the better of two replicas drawn at random.

Mitzenmacher, "The power of two choices in randomized load balancing" (2001): almost as good as
looking at all, and a stale view does not send everybody to the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.batch import Choose
from steersman.agents.policies.scored import Constants, PricedPolicy
from steersman.agents.policy import NO_CANDIDATE
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]

_QUEUE = REPLICA_INDEX["queue"]
_BATCH_USE = REPLICA_INDEX["batch_use"]
_MEAN_E2E = REPLICA_INDEX["mean_e2e_s"]
_E2E = REPLICA_INDEX["e2e_s"]


class P2COptions(Settings):
    """Options of `p2c` and `p2c-context`."""

    utilisation_weight: float = Field(
        default=0.3, ge=0.0, description="Weight of the GPU utilisation (batch slots in use, 0 to 1)."
    )


class P2CContextOptions(P2COptions):
    """Options of `p2c-context`."""

    execution_weight: float = Field(
        default=1.0,
        ge=0.0,
        description="Weight of this request's predicted end-to-end time, in seconds.",
    )


def p2c_cost(replicas: Float32, utilisation_weight: float | Float32) -> Float32:
    """SPEC B1's score of every candidate, (..., n), lower is better::

        queue_length * mean_latency + 0.3 * gpu_utilisation

    The queue is what runs and waits, the latency the recent mean E2E in seconds (before the first
    outcome, the estimate for this request), the utilisation the share of batch slots in use.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
    """
    mean = replicas[..., _MEAN_E2E]
    latency = np.where(mean > 0, mean, replicas[..., _E2E])
    busy = utilisation_weight * replicas[..., _BATCH_USE]
    cost: Float32 = replicas[..., _QUEUE] * latency + busy
    return cost


def p2c_context_cost(
    replicas: Float32, utilisation_weight: float | Float32, execution_weight: float | Float32
) -> Float32:
    """`p2c_cost` plus this request's predicted execution time there, (..., n)."""
    execution = execution_weight * replicas[..., _E2E]
    cost: Float32 = p2c_cost(replicas, utilisation_weight) + execution
    return cost


def better_of_two(
    cost: NDArray[np.floating], mask: NDArray[np.bool_], rng: np.random.Generator, *, policy: str
) -> Decision:
    """Draw two allowed replicas and take the cheaper; a tie is drawn evenly.

    With m candidates, the propensity of one that is cheaper than g others and equal to e others is
    (g + e / 2) / (m (m - 1) / 2): the share of pairs it wins.

    Args:
        cost: (n,), lower is better; a NaN loses to every number.
        mask: (n,).
    """
    scores = -cost.astype(np.float32, copy=False)
    allowed = np.flatnonzero(mask)
    m = len(allowed)
    if m < 2:
        choice = int(allowed[0]) if m else NO_CANDIDATE
        return Decision(choice, policy, scores=scores)
    sound = np.where(np.isnan(cost), np.inf, cost)[allowed]
    winner = _winner(sound, m, rng)
    dearer = np.count_nonzero(sound > sound[winner])
    equal = np.count_nonzero(sound == sound[winner]) - 1
    propensity = (dearer + 0.5 * equal) / (0.5 * m * (m - 1))
    return Decision(int(allowed[winner]), policy, propensity=propensity, scores=scores)


def better_of_two_choices(
    cost: NDArray[np.floating], mask: NDArray[np.bool_], rngs: Sequence[np.random.Generator]
) -> NDArray[np.int64]:
    """`better_of_two` of each row, its choice alone, (B,).

    Args:
        cost: (B, n), lower is better; a NaN loses to every number.
        mask: (B, n).
        rngs: one for each row.
    """
    choices = np.full(len(cost), NO_CANDIDATE, dtype=np.int64)
    sound = np.where(np.isnan(cost), np.inf, cost).tolist()
    whole = np.count_nonzero(mask, axis=-1) == mask.shape[1]
    for i, rng in enumerate(rngs):
        if whole[i]:
            choices[i] = _winner(sound[i], len(sound[i]), rng) if len(sound[i]) > 1 else 0
            continue
        allowed = np.flatnonzero(mask[i]).tolist()
        if len(allowed) == 1:
            choices[i] = allowed[0]
        elif allowed:
            choices[i] = allowed[_winner([sound[i][k] for k in allowed], len(allowed), rng)]
    return choices


def _winner(cost: Sequence[float] | NDArray[np.floating], m: int, rng: np.random.Generator) -> int:
    """The cheaper of two of m drawn at random, m at least 2."""
    first = int(rng.integers(m))
    second = (first + 1 + int(rng.integers(m - 1))) % m
    if cost[first] != cost[second]:
        return first if cost[first] < cost[second] else second
    return first if rng.random() < 0.5 else second


class P2C(PricedPolicy):
    """The better of two allowed replicas, see `better_of_two`."""

    name: ClassVar[str] = "p2c"

    def __init__(self, options: P2COptions, rng: np.random.Generator) -> None:
        super().__init__(rng, options.utilisation_weight)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """See `p2c_cost`, (..., n)."""
        return p2c_cost(observation.replicas, *constants)

    def decide(self, observation: Observation) -> Decision:
        """One pair, one winner."""
        return better_of_two(self.cost(observation), observation.mask, self._rng, policy=self.name)

    @classmethod
    def together(cls, policies: Sequence[Any]) -> Choose:
        """See `BatchPolicy.together`."""
        constants = cls.stack(policies)
        rngs = [policy._rng for policy in policies]

        def choose(observation: Observation) -> NDArray[np.int64]:
            return better_of_two_choices(cls.price(observation, constants), observation.mask, rngs)

        return choose


class P2CContext(P2C):
    """P2C that also weighs what this very request would take on each of the two."""

    name: ClassVar[str] = "p2c-context"

    def __init__(self, options: P2CContextOptions, rng: np.random.Generator) -> None:
        PricedPolicy.__init__(self, rng, options.utilisation_weight, options.execution_weight)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """See `p2c_context_cost`, (..., n)."""
        return p2c_context_cost(observation.replicas, *constants)
