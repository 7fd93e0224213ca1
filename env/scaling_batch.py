"""Many clusters scaled in lockstep: their requests are observed and dispatched together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steersman.env.layout import NONE
from steersman.env.scaling import Scaling
from steersman.env.vector import ClusterBatch
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

_COST = REPLICA_INDEX["marginal_cost"]


class Route(Protocol):
    """Chooses replicas for requests, one of each of B clusters."""

    def __call__(self, observation: Observation) -> NDArray[np.int64]:
        """(B,): the replica for each; -1 refuses the request.

        Every array of the observation has a leading dimension of B, 1 in the single environment. Of
        clusters in which nothing is pending the mask is all False, and the choice does not matter.
        """
        ...


def least_marginal_cost(observation: Observation) -> NDArray[np.int64]:
    """The replica with the least marginal cost (`predictors/analytic.py`); -1 if none may be chosen."""
    cost = np.where(observation.mask, observation.replicas[..., _COST], np.inf)
    return np.where(observation.mask.any(axis=-1), cost.argmin(axis=-1), NONE)


class ScalingBatch:
    """B scaled clusters. Each behaves exactly as it would alone.

    Args:
        scalings: at least one, none has ended.
        route: where requests go.
        most_replicas: of any cluster to come (`replace`).
    """

    def __init__(self, scalings: Sequence[Scaling], route: Route, *, most_replicas: int) -> None:
        self._scalings = list(scalings)
        self._route = route
        clusters = [scaling.cluster for scaling in scalings]
        self._batch = ClusterBatch(clusters, most_replicas=most_replicas)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """To look at."""
        return tuple(self._scalings)

    def replace(self, index: int, scaling: Scaling) -> None:
        """Put another in this place."""
        self._scalings[index] = scaling
        self._batch.replace(index, scaling.cluster)

    def step(self, actions: Sequence[int]) -> NDArray[np.float64]:
        """Act on each cluster, play to its next decision, and return the rewards, (B,)."""
        until_s = np.array(
            [scaling.act(action) for scaling, action in zip(self._scalings, actions, strict=True)]
        )
        while (rows := self._batch.next_requests(until_s)).max() != NONE:
            observation = self._batch.observe()
            choices = np.asarray(self._route(observation), dtype=np.int64)
            self._batch.dispatch(choices, observation)
            for index in np.flatnonzero(rows != NONE).tolist():
                self._scalings[index].note(int(rows[index]), int(choices[index]))
        return np.array([scaling.settle() for scaling in self._scalings])
