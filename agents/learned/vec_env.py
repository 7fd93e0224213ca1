"""The practice clusters as a stable-baselines3 vectorised environment.

Every cluster has a twin: the same cluster with the same arrivals, routed by marginal cost. The reward
of a decision is how much less cost the policy's cluster accrued than its twin until the next
decision (common random numbers), over the twin's mean cost of a request, since policies are compared
by ratios. At the end of an episode both are drained, so that nothing unfinished goes uncounted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from steersman.agents.learned.actor_critic import head_weights, observation_space
from steersman.agents.learned.practice import Practice
from steersman.env.vector import ClusterBatch
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
_PRIOR_COST = 0.5
_PRIOR_REQUESTS = 50
"""The twin's mean cost of a request is taken to be this, until so many have told otherwise."""


class RoutingVecEnv(VecEnv):
    """`environments` clusters in lockstep; each is replaced by a new one when its arrivals end.

    Args:
        practice: draws the clusters.
        environments: how many run at once.
        heads: of the network; see `actor_critic.head_weights`.
        seed: of the clusters drawn.
    """

    def __init__(self, practice: Practice, environments: int, heads: int, seed: int) -> None:
        self._practice = practice
        self._heads = head_weights(environments, heads)
        self._rng = np.random.default_rng(seed)
        self._actions = np.zeros(environments, dtype=np.int64)
        self._infos: list[dict[str, Any]] = [{} for _ in range(environments)]
        self.elapsed_s = np.zeros(environments, dtype=np.float32)
        """(environments,): simulated time that the last step took, for the discount."""
        width = practice.most_replicas
        super().__init__(environments, observation_space(width, heads), spaces.Discrete(width))

    def reset(self) -> VecEnvObs:
        """New clusters everywhere; their first episodes differ in length, so that they end in turn."""
        clusters = [
            self._practice.draw(self._rng, share=(i + 1) / self.num_envs) for i in range(self.num_envs)
        ]
        width = self._practice.most_replicas
        self._twins = ClusterBatch([cluster.clone() for cluster in clusters], most_replicas=width)
        self._batch = ClusterBatch(clusters, most_replicas=width)
        self._requests = np.zeros(self.num_envs)
        self._batch.next_requests()
        self._twins.next_requests()
        return self._observe()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember what to dispatch."""
        self._actions = np.asarray(actions, dtype=np.int64)

    def step_wait(self) -> VecEnvStepReturn:
        """Dispatch everywhere, advance to the next decisions, start new episodes where one ended."""
        before = self._costs()
        before_s = self._batch.now_s
        self._batch.dispatch(self._actions, self._seen)
        twins_see = self._twins.observe()
        cost = np.where(twins_see.mask, twins_see.replicas[..., _MARGINAL_COST], np.inf)
        self._twins.dispatch(cost.argmin(axis=-1), twins_see)
        self._requests += 1
        rows = self._batch.next_requests()
        twin_rows = self._twins.next_requests()
        done = (rows < 0) | (twin_rows < 0)
        for i in np.flatnonzero(done).tolist():
            self._batch.finish(i)
            self._twins.finish(i)
        spent = self._costs()
        self.elapsed_s = (self._batch.now_s - before_s).astype(np.float32)
        prior = _PRIOR_COST * _PRIOR_REQUESTS
        scale = (prior + spent[1]) / (_PRIOR_REQUESTS + self._requests)
        reward = ((spent[1] - before[1]) - (spent[0] - before[0])) / scale
        for i in np.flatnonzero(done).tolist():
            self._renew(i)
        if done.any():
            self._batch.next_requests()
            self._twins.next_requests()
        return self._observe(), reward.astype(np.float32), done, self._infos

    def _costs(self) -> NDArray[np.float64]:
        """(2, environments): accrued by the policy's clusters and by their twins."""
        return np.stack([self._batch.cost_accrued, self._twins.cost_accrued])

    def _renew(self, index: int) -> None:
        cluster = self._practice.draw(self._rng)
        self._twins.replace(index, cluster.clone())
        self._batch.replace(index, cluster)
        self._requests[index] = 0

    def _observe(self) -> VecEnvObs:
        self._seen: Observation = self._batch.observe()
        return {
            "replicas": self._seen.replicas,
            "request": self._seen.request,
            "pool": self._seen.pool,
            "mask": self._seen.mask.astype(np.int8),
            "heads": self._heads,
        }

    def close(self) -> None:
        """Nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        """stable-baselines3 asks for `render_mode`: there is none."""
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002
        """Clusters have no attributes to set from outside."""
        raise AttributeError(attr_name)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,  # noqa: ARG002
        indices: Any = None,  # noqa: ARG002
        **method_kwargs: Any,  # noqa: ARG002
    ) -> list[Any]:
        """Clusters have no methods to call from outside."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """They are not."""
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Draw other clusters from the next reset on."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return [seed] * self.num_envs
