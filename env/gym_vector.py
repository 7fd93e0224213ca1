"""The vectorised routing environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from steersman.env.episodes import EpisodeSampler, scenario_sampler
from steersman.env.gym_spaces import Arrays, as_arrays, observation_space
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Observation


class VectorRoutingEnv(VectorEnv[Arrays, NDArray[np.int64], NDArray[np.float64]]):
    """Many clusters in lockstep, observed in one pass. Spaces and rewards are `RoutingEnv`'s.

    A finished episode is replaced in the same step (`AutoresetMode.SAME_STEP`): the returned observation
    is the new episode's first, `info["final_obs"]` (with `_final_obs`) holds the last of the old. The
    episodes drawn under a seed depend on nothing but the seed, the number of the environment and the
    number of the episode.

    Args:
        num_envs: clusters.
        sampler: draws the episodes; None: of `scenario`.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        num_envs: int,
        *,
        scenario: str = "tiny",
        sampler: EpisodeSampler | None = None,
        requests: int = 500,
        randomise: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self._sampler = sampler or scenario_sampler(scenario, requests, randomise)
        most = self._sampler.most_replicas
        self.single_observation_space = observation_space(most)
        self.single_action_space = spaces.Discrete(most)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs = [np.random.default_rng(index) for index in range(num_envs)]
        self._batch: ClusterBatch | None = None
        self._observation: Observation | None = None
        self._cost = np.zeros(num_envs)
        self._now_s = np.zeros(num_envs)

    @property
    def batch(self) -> ClusterBatch:
        """The clusters of the current episodes."""
        if self._batch is None:
            raise RuntimeError("no episode yet; call reset()")
        return self._batch

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode in every environment; a single seed is spread over them."""
        super().reset(seed=seed if not isinstance(seed, list) else None, options=options)
        if isinstance(seed, int):
            self._rngs = [np.random.default_rng([seed, index]) for index in range(self.num_envs)]
        elif seed is not None:
            for index, one in enumerate(seed):
                if one is not None:
                    self._rngs[index] = np.random.default_rng(one)
        clusters = [self._sampler.draw(rng) for rng in self._rngs]
        self._batch = ClusterBatch(clusters, most_replicas=self._sampler.most_replicas)
        rows = self._batch.next_requests()
        self._cost = self._batch.cost_accrued
        self._now_s = self._batch.now_s
        return self._look(), {"row": rows, "elapsed_s": np.zeros(self.num_envs)}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Arrays, NDArray[np.float64], Any, Any, dict[str, Any]]:
        """Dispatch every pending request and go on to the next of each cluster."""
        batch = self.batch
        if self._observation is None:
            raise RuntimeError("no episode yet; call reset()")
        chosen = np.asarray(actions, dtype=np.int64)
        invalid = ~self._observation.mask[np.arange(self.num_envs), chosen]
        batch.dispatch(np.where(invalid, -1, chosen), self._observation)
        rows = batch.next_requests()
        ended = rows < 0
        for index in np.flatnonzero(ended).tolist():
            batch.finish(index)
        cost = batch.cost_accrued
        rewards = self._cost - cost
        now_s = batch.now_s
        info: dict[str, Any] = {
            "row": rows,
            "elapsed_s": now_s - self._now_s,
            "invalid_action": invalid,
        }
        if ended.any():
            info |= self._begin_again(ended)
        self._cost = batch.cost_accrued
        self._now_s = batch.now_s
        return self._look(), rewards, ended, np.zeros(self.num_envs, dtype=np.bool_), info

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, n): which actions are valid now."""
        if self._observation is None:
            raise RuntimeError("no episode yet; call reset()")
        return self._observation.mask

    def _begin_again(self, ended: NDArray[np.bool_]) -> dict[str, Any]:
        """Replace finished episodes; what Gymnasium wants to be told of the old ones."""
        final = np.full(self.num_envs, None, dtype=object)
        last = as_arrays(self.batch.observe())
        for index in np.flatnonzero(ended).tolist():
            final[index] = {name: values[index].copy() for name, values in last.items()}
            self.batch.replace(index, self._sampler.draw(self._rngs[index]))
        self.batch.next_requests()
        return {"final_obs": final, "_final_obs": ended.copy()}

    def _look(self) -> Arrays:
        self._observation = self.batch.observe()
        return as_arrays(self._observation)
