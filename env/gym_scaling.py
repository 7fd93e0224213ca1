"""Gymnasium environments of scaling: `steersman/Scaling-v0`, and many at once.

One step is one decision, every `ScalingRules.interval_s`; requests that arrive in between are routed
inside, by default to the replica with the least marginal cost. An episode ends when all requests have
arrived and all work is drained.

**Observation** Box (SCALING_FEATURES,), float32, natural units; `scaling.py` names the columns.

**Action** Discrete(len(rules.changes)): action i changes the desired number of replicas by
`rules.changes[i]`, as far as minimum, maximum and budget allow; during the cooldown nothing happens.
`info["change"]` is what happened, `action_masks()` says which actions do just what they say.

**Reward** minus the cost that the requests accrued since the last decision (`Cluster.cost_accrued`), and
minus `price_per_usd` for every dollar that replicas cost meanwhile, from start until gone.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.episodes import EpisodeSampler
from steersman.env.gym_spaces import MOST
from steersman.env.render import RENDER_MODES, checked_mode, draw, views
from steersman.env.scaling import SCALING_FEATURES, Scaling, ScalingRules
from steersman.env.scaling_batch import Route, ScalingBatch, least_marginal_cost
from steersman.env.scaling_episodes import SwingSampler
from steersman.env.scenario import load_scenario

Vector = NDArray[np.float32]


class ScalingEnv(gymnasium.Env[Vector, np.int64]):
    """Scale one cluster, episode by episode.

    Args:
        scenario: name or path of a scenario, where no sampler is given.
        sampler: draws the episodes: clusters with replicas on standby.
        rules: what may be done, and what replicas cost.
        route: where requests go.
        duration_s: of the arrivals in an episode of the scenario.
        render_mode: see `RoutingEnv`.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 (Gymnasium's)

    def __init__(
        self,
        scenario: str = "homogeneous",
        *,
        sampler: EpisodeSampler | None = None,
        rules: ScalingRules | None = None,
        route: Route = least_marginal_cost,
        duration_s: float = 900.0,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = checked_mode(render_mode)
        self._sampler = sampler or SwingSampler(load_scenario(scenario), duration_s=duration_s)
        self._rules = rules or ScalingRules()
        self._route = route
        space: Any = scaling_space()
        self.observation_space = space
        self.action_space = spaces.Discrete(len(self._rules.changes))
        self._batch: ScalingBatch | None = None

    @property
    def scaling(self) -> Scaling:
        """The current episode."""
        return self._started().scalings[0]

    @property
    def cluster(self) -> Cluster:
        """The cluster of the current episode."""
        return self.scaling.cluster

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode, before its first arrival."""
        super().reset(seed=seed, options=options)
        scaling = Scaling(self._sampler.draw(self.np_random), self._rules)
        most = self._sampler.most_replicas
        self._batch = ScalingBatch([scaling], self._route, most_replicas=most)
        return _look(scaling), {"elapsed_s": 0.0, "change": 0}

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Change the number of replicas and go on to the next decision."""
        scaling = self.scaling
        if scaling.ended:
            raise RuntimeError("the episode has ended; call reset()")
        before_s = scaling.cluster.now_s
        change = scaling.effect(int(action))
        reward = float(self._started().step([int(action)])[0])
        info = {"elapsed_s": scaling.cluster.now_s - before_s, "change": change}
        return _look(scaling), reward, scaling.ended, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,): which actions do just what they say."""
        return self.scaling.mask()

    def render(self) -> Any:
        """The cluster as it is now, as text or as an image."""
        if self.render_mode is None:
            return None
        scaling = self.scaling
        title = (
            f"t {scaling.cluster.now_s:.0f} s  {scaling.desired} of {len(scaling.cluster.replicas)} "
            f"replicas  cost {scaling.cluster.cost_accrued:.2f}  paid {scaling.cluster.cost_usd:.3f} USD"
        )
        return draw(self.render_mode, views(scaling.cluster, scaling.choices), title)

    def _started(self) -> ScalingBatch:
        if self._batch is None:
            raise RuntimeError("no episode yet; call reset()")
        return self._batch


class VectorScalingEnv(VectorEnv[Vector, NDArray[np.int64], NDArray[np.float64]]):
    """Many clusters in lockstep, their requests observed in one pass. All else is `ScalingEnv`'s.

    A finished episode is replaced in the same step, and seeds are spread, as in `VectorRoutingEnv`.

    Args:
        num_envs: clusters.
        scenario, sampler, rules, route, duration_s: see `ScalingEnv`.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        num_envs: int,
        *,
        scenario: str = "homogeneous",
        sampler: EpisodeSampler | None = None,
        rules: ScalingRules | None = None,
        route: Route = least_marginal_cost,
        duration_s: float = 900.0,
    ) -> None:
        self.num_envs = num_envs
        self._sampler = sampler or SwingSampler(load_scenario(scenario), duration_s=duration_s)
        self._rules = rules or ScalingRules()
        self._route = route
        self.single_observation_space = scaling_space()
        self.single_action_space = spaces.Discrete(len(self._rules.changes))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs = [np.random.default_rng(index) for index in range(num_envs)]
        self._batch: ScalingBatch | None = None

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The current episodes."""
        return self._started().scalings

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode in every environment; a single seed is spread over them."""
        super().reset(seed=seed if not isinstance(seed, list) else None, options=options)
        if isinstance(seed, int):
            self._rngs = [np.random.default_rng([seed, index]) for index in range(self.num_envs)]
        elif seed is not None:
            for index, one in enumerate(seed):
                if one is not None:
                    self._rngs[index] = np.random.default_rng(one)
        begun = [self._begin(index) for index in range(self.num_envs)]
        self._batch = ScalingBatch(begun, self._route, most_replicas=self._sampler.most_replicas)
        zeros = np.zeros(self.num_envs)
        return self._look(), {"elapsed_s": zeros, "change": zeros.astype(np.int64)}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Vector, NDArray[np.float64], Any, Any, dict[str, Any]]:
        """Change the number of replicas of each and go on to its next decision."""
        batch, scalings = self._started(), self.scalings
        chosen = np.asarray(actions, dtype=np.int64).tolist()
        pairs = zip(scalings, chosen, strict=True)
        changes = np.array([scaling.effect(action) for scaling, action in pairs])
        before_s = np.array([scaling.cluster.now_s for scaling in scalings])
        rewards = batch.step(chosen)
        now_s = np.array([scaling.cluster.now_s for scaling in scalings])
        ended = np.array([scaling.ended for scaling in scalings])
        info: dict[str, Any] = {"elapsed_s": now_s - before_s, "change": changes}
        if ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for index in np.flatnonzero(ended).tolist():
                final[index] = _look(scalings[index])
                batch.replace(index, self._begin(index))
            info |= {"final_obs": final, "_final_obs": ended.copy()}
        return self._look(), rewards, ended, np.zeros(self.num_envs, dtype=np.bool_), info

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions): which actions do just what they say."""
        return np.stack([scaling.mask() for scaling in self.scalings])

    def _begin(self, index: int) -> Scaling:
        return Scaling(self._sampler.draw(self._rngs[index]), self._rules)

    def _look(self) -> Vector:
        return np.stack([_look(scaling) for scaling in self.scalings])

    def _started(self) -> ScalingBatch:
        if self._batch is None:
            raise RuntimeError("no episode yet; call reset()")
        return self._batch


def scaling_space() -> spaces.Box:
    """The space of one observation."""
    return spaces.Box(-MOST, MOST, (len(SCALING_FEATURES),), dtype=np.float32)


def _look(scaling: Scaling) -> Vector:
    return np.clip(scaling.observe(), -MOST, MOST)
