"""How large a router's prefix tree of each replica is: what cache-aware routers balance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import NO_CANDIDATE
from steersman.predictors.features import REPLICA_INDEX

_UNCACHED = REPLICA_INDEX["uncached_tokens"]


class TreeSizes:
    """Tokens in each replica's tree: a prompt adds what did not match there.

    By position; it starts anew when the number of replicas changes. A tree that outgrows its limit is
    cut back to it, as eviction of the least recently used would.

    Args:
        most_tokens: limit of one tree.
    """

    def __init__(self, most_tokens: float) -> None:
        self._most = most_tokens
        self._tokens: NDArray[np.float64] = np.zeros(0)

    def of(self, n: int) -> NDArray[np.float64]:
        """(n,): tokens in each tree."""
        if len(self._tokens) != n:
            self._tokens = np.zeros(n)
        return self._tokens

    def insert(self, replicas: NDArray[np.float32], choice: int) -> None:
        """The request goes to a replica.

        Args:
            replicas: (n, len(REPLICA_FEATURES)).
        """
        added = float(replicas[choice, _UNCACHED])
        if np.isfinite(added):
            tokens = self.of(len(replicas))
            tokens[choice] = min(tokens[choice] + added, self._most)


class Forest:
    """The trees of several routers, for a batch of decisions."""

    def __init__(self, trees: Sequence[TreeSizes]) -> None:
        self._trees = trees

    def of(self, n: int) -> NDArray[np.float64]:
        """(B, n): tokens in each tree."""
        return np.stack([tree.of(n) for tree in self._trees])

    def insert(self, replicas: NDArray[np.float32], choices: NDArray[np.int64]) -> None:
        """The requests go to replicas.

        Args:
            replicas: (B, n, len(REPLICA_FEATURES)).
            choices: (B,); NO_CANDIDATE goes nowhere.
        """
        for i, choice in enumerate(choices.tolist()):
            if choice != NO_CANDIDATE:
                self._trees[i].insert(replicas[i], choice)
