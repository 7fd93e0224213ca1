"""Many decisions in one call, for evaluations that play many clusters in lockstep.

A decision costs 20 to 160 µs, nearly all of it the fixed cost of numpy calls: taken for a hundred
clusters at once, each with its own constants, it costs a few. The choices are those of `decide`, one by
one; `tests/agents/test_batch.py` holds it for every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import LOWEST, NO_CANDIDATE, Policy
from steersman.traces.schema import Observation

Choose = Callable[[Observation], NDArray[np.int64]]
"""From a batch of observations, without padding, to the choice of each policy, (B,).

Where the mask allows nobody it is NO_CANDIDATE, and neither the policy's state nor its generator moves.
"""

FEWEST = 3
"""Policies of a class in clusters of a size that are worth asking together."""


@runtime_checkable
class BatchPolicy(Policy, Protocol):
    """A policy that can be asked together with others of its class."""

    @staticmethod
    def together(policies: Sequence[Any]) -> Choose:
        """Ask these at once, the i-th about the i-th observation.

        They keep their state and their generators, and may be asked alone in between.

        Args:
            policies: of the very class that this is called on; their constants may differ.
        """
        ...


class Deciders:
    """The policies of a batch of clusters, one each; asked together where they can be.

    Args:
        policies: one for each cluster.
        replicas: of each cluster; what the observations have beyond is padding.
    """

    def __init__(self, policies: Sequence[Policy], replicas: Sequence[int]) -> None:
        self._policies = list(policies)
        self._replicas = list(replicas)
        kinds: dict[tuple[type[Policy], int], list[int]] = {}
        self._alone: list[int] = []
        for i, policy in enumerate(policies):
            if isinstance(policy, BatchPolicy):
                kinds.setdefault((type(policy), replicas[i]), []).append(i)
            else:
                self._alone.append(i)
        self._groups: list[tuple[NDArray[np.int64], int, Choose]] = []
        for (_, n), members in kinds.items():
            if len(members) < FEWEST:
                self._alone += members
                continue
            chosen: list[Any] = [policies[i] for i in members]
            self._groups.append((np.array(members), n, chosen[0].together(chosen)))

    def choices(self, seen: Observation, asked: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(B,): each policy's choice.

        Args:
            seen: of all clusters; the mask of those that are not asked is False.
            asked: (B,), which have a request to decide.
        """
        choices = np.full(len(asked), NO_CANDIDATE, dtype=np.int64)
        # Where nobody is asked the features are 0, and formulas divide by them.
        with np.errstate(all="ignore"):
            for rows, n, choose in self._groups:
                choices[rows] = choose(seen.rows(rows, n))
        for i in self._alone:
            if asked[i]:
                choices[i] = self._policies[i].decide(seen.single(i, self._replicas[i])).choice
        return choices


def argmax_choices(
    scores: NDArray[np.floating], mask: NDArray[np.bool_], rngs: Sequence[np.random.Generator]
) -> NDArray[np.int64]:
    """`argmax_decision` of each row: the highest allowed score, a tie drawn from the row's generator.

    Args:
        scores: (B, n), higher is better; a NaN loses to every number.
        mask: (B, n).
        rngs: one for each row.
    """
    allowed = np.where(mask, np.fmax(scores, LOWEST), -np.inf)
    best = allowed.max(axis=-1, keepdims=True, initial=-np.inf)
    tied = allowed == best
    choices: NDArray[np.int64] = tied.argmax(axis=-1)
    nobody = best[:, 0] == -np.inf
    choices[nobody] = NO_CANDIDATE
    for i in np.flatnonzero((np.count_nonzero(tied, axis=-1) > 1) & ~nobody).tolist():
        equals = np.flatnonzero(tied[i])
        choices[i] = equals[rngs[i].integers(len(equals))]
    return choices
