"""Gymnasium environments of routing. Importing this module registers `steersman/Routing-v0` and
`steersman/Scaling-v0` (`gym_scaling.py`).

One step is one decision: the action is the replica that gets the pending request, and time then runs to
the next arrival. An episode ends when all requests have arrived and all work is drained.

**Observation** (Dict, float32, natural units; `predictors/features.py` names the columns):
`replicas` (n, REPLICA_FEATURES), `request` (REQUEST_FEATURES,), `pool` (POOL_FEATURES,), and `mask`
(n,), 1 where a replica may be chosen. n is `most_replicas` of the sampler; smaller pools are padded with
zeros.

**Action** Discrete(n). Choosing a replica whose mask is 0 refuses the request, at the full cost of a
refusal (42 times its weight); `info["invalid_action"]` says so.

**Reward** minus the cost accrued since the last decision (`Cluster.cost_accrued`), that is minus the
weighted latency over service level of everything in flight, plus misses. The last reward includes the
drain. Decisions are not evenly spaced: `info["elapsed_s"]` is the time since the last one, for
discounting in continuous time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.episodes import EpisodeSampler, scenario_sampler
from steersman.env.gym_scaling import ScalingEnv, VectorScalingEnv
from steersman.env.gym_spaces import Arrays, as_arrays, observation_space
from steersman.env.gym_vector import VectorRoutingEnv
from steersman.env.render import RECENT, RENDER_MODES, checked_mode, draw, views
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Observation

__all__ = [
    "ROUTING_ID",
    "SCALING_ID",
    "RoutingEnv",
    "ScalingEnv",
    "VectorRoutingEnv",
    "VectorScalingEnv",
]

ROUTING_ID = "steersman/Routing-v0"
SCALING_ID = "steersman/Scaling-v0"


class RoutingEnv(gymnasium.Env[Arrays, np.int64]):
    """Route the requests of one cluster, episode by episode.

    Args:
        scenario: name or path of a scenario, where no sampler is given.
        sampler: draws the episodes.
        requests: arrivals in an episode of the scenario.
        randomise: draw replicas, hardware, load and staleness anew for every episode.
        render_mode: "ansi" for a line per replica, "rgb_array" for an image of (480, 800, 3), or None;
            see `render.py`.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 (Gymnasium's)

    def __init__(
        self,
        scenario: str = "tiny",
        *,
        sampler: EpisodeSampler | None = None,
        requests: int = 500,
        randomise: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = checked_mode(render_mode)
        self._sampler = sampler or scenario_sampler(scenario, requests, randomise)
        space: Any = observation_space(self._sampler.most_replicas)
        self.observation_space = space
        self.action_space = spaces.Discrete(self._sampler.most_replicas)
        self._batch: ClusterBatch | None = None
        self._observation: Observation | None = None
        self._cost = 0.0
        self._choices: deque[int] = deque(maxlen=RECENT)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the current episode."""
        return self._started().clusters[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode at its first request."""
        super().reset(seed=seed, options=options)
        cluster = self._sampler.draw(self.np_random)
        self._batch = ClusterBatch([cluster], most_replicas=self._sampler.most_replicas)
        row = int(self._batch.next_requests()[0])
        self._cost = cluster.cost_accrued
        self._choices.clear()
        return self._look(), {"row": row, "elapsed_s": 0.0, "invalid_action": False}

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Dispatch the pending request and go on to the next."""
        batch = self._started()
        if self._observation is None:
            raise RuntimeError("the episode has ended; call reset()")
        invalid = not self._observation.mask[0, action]
        before_s = self.cluster.now_s
        choice = -1 if invalid else int(action)
        batch.dispatch(np.array([choice]), self._observation)
        self._choices.append(choice)
        row = int(batch.next_requests()[0])
        ended = row < 0
        if ended:
            batch.finish(0)
        cost = self.cluster.cost_accrued
        reward = self._cost - cost
        self._cost = cost
        arrays = self._look()
        if ended:
            self._observation = None
        info = {
            "row": row,
            "elapsed_s": self.cluster.now_s - before_s,
            "invalid_action": bool(invalid),
        }
        return arrays, reward, ended, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(n,): which actions are valid now, as sb3-contrib's masked algorithms ask for it."""
        if self._observation is None:
            return np.zeros(self._sampler.most_replicas, dtype=np.bool_)
        mask: NDArray[np.bool_] = self._observation.mask[0]
        return mask

    def render(self) -> Any:
        """The cluster as it is now, as text or as an image."""
        if self.render_mode is None:
            return None
        title = f"t {self.cluster.now_s:.2f} s  request {self.cluster.pending}  cost {self._cost:.2f}"
        return draw(self.render_mode, views(self.cluster, self._choices), title)

    def _look(self) -> Arrays:
        self._observation = self._started().observe()
        return {name: values[0] for name, values in as_arrays(self._observation).items()}

    def _started(self) -> ClusterBatch:
        if self._batch is None:
            raise RuntimeError("no episode yet; call reset()")
        return self._batch


if ROUTING_ID not in gymnasium.registry:
    gymnasium.register(id=ROUTING_ID, entry_point="steersman.env.gym:RoutingEnv")
if SCALING_ID not in gymnasium.registry:
    gymnasium.register(id=SCALING_ID, entry_point="steersman.env.gym_scaling:ScalingEnv")
