"""Counterfactual replay: champion and challenger on the same traffic, in the cluster a log tells of.

Each stream is a block bootstrap of the log's own traffic, at its own rate and no longer than it, so that
the spread over streams is that of the log. Both play every stream on clusters with the same seed
(docs/evaluation.md): all comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Course, Protocol
from steersman.agents.evaluate.lockstep import Entry, play
from steersman.agents.evaluate.table import Cell, EvaluationTable, Run
from steersman.agents.offpolicy.contestants import Contestant
from steersman.agents.offpolicy.world import World, believe
from steersman.agents.parallel import spread
from steersman.env.bulk import trace_length_features
from steersman.env.cluster import Cluster
from steersman.traces.bootstrap import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario

CHAMPION, CHALLENGER = "champion", "challenger"
SEEDS = tuple(range(10))
MOST_REQUESTS = 3_000
WARM_UP_SHARE = 0.1
BLOCK_S = 30.0
LEAST_BLOCKS = 20
"""A log shorter than so many blocks of `BLOCK_S` is cut into shorter ones."""


@dataclass(frozen=True)
class LoggedCourse(Course):
    """A course on the log's cluster, whose router begins with what the logged one believed."""

    world: World | None = None

    def _made(self, *, true_lengths: bool) -> Cluster:
        cluster = super()._made(true_lengths=true_lengths)
        if self.world is not None:
            believe(cluster, self.world.believed)
        return cluster


def replay(
    world: World,
    champion: Contestant,
    challenger: Contestant,
    *,
    seeds: Sequence[int] = SEEDS,
    requests: int = MOST_REQUESTS,
    rates: Sequence[float] = (1.0,),
    jobs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> EvaluationTable:
    """Runs of `champion` and `challenger` in the cells of these rates.

    Args:
        seeds: one stream each; two at least, five for a claim.
        requests: of a stream, at most; never more than were logged.
        rates: arrival rates over the log's own.
        jobs: processes that share the streams.
        on_progress: told now and then how many streams have been played, of `len(seeds) * len(rates)`.

    Raises:
        ConfigError: no seeds or rates, or a log without a rate.
    """
    if not (seeds and rates) or min(rates) <= 0.0 or not world.trace.rate_rps > 0.0:
        raise ConfigError("nothing to replay: give seeds, positive rates, and a log of some length")
    both = {CHAMPION: champion, CHALLENGER: challenger}
    tasks = [partial(_play, world, both, rate, seed, requests) for rate in rates for seed in seeds]
    played = spread(tasks, jobs, on_progress or (lambda _: None))
    return EvaluationTable(tuple(run for runs in played for run in runs))


def _play(
    world: World,
    both: dict[str, Contestant],
    rate: float,
    seed: int,
    requests: int,
    on_progress: Callable[[float], None],
) -> list[Run]:
    """Both on one stream."""
    trace = world.trace
    rate_rps = rate * trace.rate_rps
    duration_s = min(trace.duration_s, requests / rate_rps)
    stream = block_bootstrap(
        trace,
        rate_rps=rate_rps,
        duration_s=duration_s,
        seed=seed,
        block_s=min(BLOCK_S, trace.duration_s / LEAST_BLOCKS),
    )
    features = trace_length_features(stream)
    scenario = Scenario(
        name="log",
        replicas=world.specs,
        trace=trace.name,
        load=rate,
        staleness=world.staleness,
        prefix_cache=world.prefix_cache,
    )
    protocol = Protocol(warmup_s=WARM_UP_SHARE * duration_s)
    entries = []
    for name, one in both.items():
        quantiles: NDArray[np.float64] = one.length.predict(features)[:, :2]
        course = LoggedCourse(
            scenario, Cell("log", rate), seed, stream, quantiles, features, duration_s, world=world
        )
        entries.append(Entry(name, one.policy, course))
    return play(entries, protocol, lambda runs: on_progress(runs / len(entries)))
