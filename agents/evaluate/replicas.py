"""Replicas for equal goodput: how small a pool may be that still keeps its promises.

For a policy and a fixed arrival rate, the least number of replicas at which 95 % of the requests meet
their service levels, between whole numbers by linear interpolation. Every pool and every policy meets
the same arrivals, so that the ratio of two policies is of paired numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Protocol
from steersman.agents.evaluate.factories import Contestant
from steersman.agents.evaluate.pools import resized
from steersman.agents.evaluate.run import evaluate
from steersman.agents.evaluate.statistics import Ratio, paired_ratio
from steersman.traces.scenario import Scenario

FEWEST, MOST = 4, 32
"""Sizes of pools that are tried."""
ATTAINMENT = 0.95
"""Share of the requests that must meet their service levels."""

Attained = Callable[[int], NDArray[np.float64]]
"""Share of the requests that met them with so many replicas, by seed."""


@dataclass(frozen=True)
class Needed:
    """The replicas that a policy needs."""

    policy: str
    by_seed: NDArray[np.float64]
    """(seeds,), within FEWEST and MOST."""
    beyond: int = 0
    """Seeds for which even MOST did not suffice: they count as MOST, too few."""
    enough: int = 0
    """Seeds for which FEWEST sufficed: they count as FEWEST, too many."""

    @property
    def mean(self) -> float:
        """Geometric, over seeds."""
        return float(np.exp(np.log(self.by_seed).mean()))

    def over(self, baseline: Needed) -> Ratio:
        """Of these replicas to a baseline's, paired by seed, with a bootstrap interval."""
        return paired_ratio({self.policy: (self.by_seed, baseline.by_seed)})


def replicas_needed(
    policies: Mapping[str, Contestant],
    scenario: Scenario,
    protocol: Protocol,
    *,
    jobs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Needed]:
    """The least pool for each policy.

    Args:
        scenario: its replicas give the proportions (`pools.resized`).
        protocol: with one load: the arrival rate over the saturation of the scenario as it is, whatever
            the size of the pool.
        jobs: processes that share the runs of one policy and pool.
        on_progress: called with the runs done since the last call. How many there will be is not known:
            about `(log2(MOST - FEWEST + 2) + 2) * policies * seeds`.

    Raises:
        ConfigError: nothing to run, or a pool that cannot be resized.
        ValueError: not one load.
    """
    if len(protocol.loads) != 1:
        raise ValueError(f"loads = {protocol.loads} must be one")

    def attained(policy: str, replicas: int) -> NDArray[np.float64]:
        pool = resized(scenario, replicas)
        one = {policy: policies[policy]}
        table = evaluate(one, [pool], protocol, jobs=jobs, on_progress=on_progress)
        return table.by_seed(policy, table.cells[0], "slo_attainment")

    seeds = len(protocol.seeds)
    return {policy: least(policy, partial(attained, policy), seeds) for policy in policies}


def least(policy: str, attained: Attained, seeds: int) -> Needed:
    """By bisection, for every seed; what one seed asks for is known to the others.

    More replicas are taken to be better; where that fails by a hair, one of the crossings is found.
    """
    known: dict[int, NDArray[np.float64]] = {}

    def ask(replicas: int) -> NDArray[np.float64]:
        if replicas not in known:
            known[replicas] = attained(replicas)
        return known[replicas]

    found = np.empty(seeds)
    beyond = enough = 0
    for seed in range(seeds):
        low, high = FEWEST - 1, MOST + 1
        while high - low > 1:
            middle = _next(low, high, known)
            low, high = (low, middle) if ask(middle)[seed] >= ATTAINMENT else (middle, high)
        if high > MOST:
            beyond, found[seed] = beyond + 1, MOST
        elif low < FEWEST:
            enough, found[seed] = enough + 1, FEWEST
        else:
            share = (ATTAINMENT - known[low][seed]) / (known[high][seed] - known[low][seed])
            found[seed] = low + share
    return Needed(policy, found, beyond, enough)


def _next(low: int, high: int, known: Mapping[int, object]) -> int:
    """The size to look at between two others: the middle, or the nearest to it that costs nothing."""
    middle = (low + high) // 2
    free = [size for size in known if low < size < high]
    return min(free, key=lambda size: abs(size - middle), default=middle)
