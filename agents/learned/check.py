"""Comparisons on the way: is the policy better than marginal cost yet?

A quick, paired look on the tuning part of the trace, with seeds of its own: it picks the checkpoint
and draws the curve. What is claimed in the end comes from `agents/evaluate`, on other arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from steersman.agents.learned.config import CheckSettings
from steersman.agents.learned.counterfactual import PARTS
from steersman.agents.learned.export import head_logits
from steersman.agents.learned.ground import Ground, cluster_under
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.playing import play
from steersman.agents.parallel import Task, spread
from steersman.env.cluster import Cluster
from steersman.env.scenario import make_trace, saturation_of
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.length import LengthPredictor
from steersman.traces.schema import Observation

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
CHECK_SEED = 77_000
"""First seed of the checks' arrivals; evaluations use small ones."""


@dataclass(frozen=True)
class Check:
    """Ratio of mean costs, policy over marginal cost: exp of the mean log ratio over the runs."""

    ratio: float
    by_ground: tuple[float, ...]
    by_run: tuple[float, ...]


class Checker:
    """Runs the same arrivals under marginal cost once, and under the policy whenever asked.

    Args:
        grounds: scenarios, and the tuning parts of their traces.
        settings: loads, seeds and requests, the same for all.
        jobs: processes; the result is the same whatever their number.
    """

    def __init__(
        self,
        grounds: Sequence[Ground],
        length: LengthPredictor,
        settings: CheckSettings,
        *,
        jobs: int = 1,
    ) -> None:
        self._jobs = jobs
        self._grounds = len(grounds)
        self._settling = settings.settling
        self._clusters = [
            cluster for ground in grounds for cluster in _clusters(ground, length, settings)
        ]
        self._baseline = self._play(None)

    def check(self, network: RoutingNetwork) -> Check:
        """Compare the network, acting greedily, with marginal cost."""
        ratios = np.log(self._play(network) / self._baseline)
        by_ground = np.exp(ratios.reshape(self._grounds, -1).mean(axis=1))
        return Check(
            float(np.exp(ratios.mean())), tuple(by_ground.tolist()), tuple(np.exp(ratios).tolist())
        )

    def _play(self, network: RoutingNetwork | None) -> NDArray[np.float64]:
        """Cost of each run after it has settled, with all work drained."""
        runs = np.array_split(np.arange(len(self._clusters)), min(PARTS, len(self._clusters)))

        def task(part: NDArray[np.int64]) -> Task[NDArray[np.float64]]:
            return lambda _: self._play_part([self._clusters[i] for i in part], network)

        return np.concatenate(spread([task(part) for part in runs], self._jobs, lambda _: None))

    def _play_part(
        self, clusters: Sequence[Cluster], network: RoutingNetwork | None
    ) -> NDArray[np.float64]:
        torch.set_num_threads(1)  # a fork has none of the threads that this process may have had
        end_s = np.array([cluster.trace.arrival_s[-1] for cluster in clusters])
        return play(clusters, partial(_choices, network), self._settling * end_s).cost


def _clusters(ground: Ground, length: LengthPredictor, settings: CheckSettings) -> Iterator[Cluster]:
    scenario = ground.scenario
    for load in settings.loads:
        least_s = settings.reuse_run_s if ground.reuses else settings.run_s
        duration_s = max(settings.requests / (load * saturation_of(scenario, "tune")), least_s)
        for seed in range(CHECK_SEED, CHECK_SEED + settings.seeds):
            trace = make_trace(
                scenario, seed, duration_s=duration_s, load=load, split="tune", source=ground.tuning
            )
            yield cluster_under(trace, scenario, length, seed=seed)


def _choices(network: RoutingNetwork | None, seen: Observation) -> NDArray[np.int64]:
    if network is None:
        scores = -np.where(seen.mask, seen.replicas[..., _MARGINAL_COST], np.inf)
    else:
        scores = head_logits(network, seen).mean(axis=1)
    return np.asarray(scores.argmax(axis=-1), dtype=np.int64)
