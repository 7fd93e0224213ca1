"""Labels for the latency model: what the cluster model did with requests, and what a router knew before.

Every run plays a resampled part of the trace on its own mix of hardware, at its own load and staleness,
under a policy that mostly takes the least marginal cost and sometimes any replica: the model must know
the states that good routing leads to, and what would happen off its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile, profile_names, with_limits
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import for_split
from steersman.predictors.bulk import output_quantiles
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.latency import LATENCY_FEATURES, latency_rows
from steersman.predictors.length import LengthPredictor
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.schema import HardwareProfile, Observation, ReplicaSpec, Scenario
from steersman.traces.trace import Trace

LEAST_LOAD, MOST_LOAD = 0.3, 1.3
RANDOM_SHARES = (0.1, 0.3, 1.0)
"""Shares of decisions drawn at random, one per run."""
MOST_REPLICAS = 8
STRAGGLERS = 0.15
"""Share of replicas slowed down by up to a factor of two."""

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


@dataclass(frozen=True)
class LatencySamples:
    """Decisions and what became of them. All arrays have one row per decision that ended well."""

    rows: NDArray[np.float32]
    """(n, len(LATENCY_FEATURES)): the chosen candidate, as known at the decision."""
    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    """0 for an answer of one token."""
    load: NDArray[np.float64]
    """Of the run, over the saturation of its mix; NaN where it is unknown (a router's log)."""

    def __len__(self) -> int:
        return len(self.ttft_s)


@dataclass(frozen=True)
class Run:
    """One simulated run."""

    replicas: tuple[ReplicaSpec, ...]
    load: float
    random_share: float
    scrape_interval_s: float
    seed: int


def draw_runs(scenario: Scenario, count: int, rng: np.random.Generator, *, own_mix: bool) -> list[Run]:
    """Runs on mixes of the scenario's hardware and of other hardware that serves its model.

    Args:
        own_mix: whether every third run uses the scenario's replicas as they are.
    """
    others = _other_profiles(scenario)
    runs = []
    for i in range(count):
        own = own_mix and i % 3 == 0
        runs.append(
            Run(
                replicas=scenario.replicas if own else _mix(scenario, others, rng),
                load=LEAST_LOAD + (MOST_LOAD - LEAST_LOAD) * (i + rng.random()) / count,
                random_share=float(rng.choice(RANDOM_SHARES)),
                scrape_interval_s=scenario.staleness.scrape_interval_s * float(rng.uniform(0.5, 4.0)),
                seed=int(rng.integers(2**31)),
            )
        )
    return runs


def sample_run(
    run: Run, scenario: Scenario, trace: Trace, decisions: int, length: LengthPredictor
) -> LatencySamples:
    """Play one run and collect what became of every decision."""
    rate_rps = run.load * SaturationEstimate(trace, for_split(scenario, "train")).of(run.replicas)
    arrivals = block_bootstrap(trace, rate_rps=rate_rps, duration_s=decisions / rate_rps, seed=run.seed)
    cluster = Cluster(
        run.replicas,
        arrivals,
        output_quantiles=output_quantiles(arrivals, length),
        staleness=replace(scenario.staleness, scrape_interval_s=run.scrape_interval_s),
        prefix_cache=scenario.prefix_cache,
        seed=run.seed,
    )
    rng = np.random.default_rng(run.seed)
    rows = np.zeros((len(arrivals), len(LATENCY_FEATURES)), dtype=np.float32)
    while (row := cluster.next_request()) is not None:
        seen = cluster.observe()
        choice = _choose(seen, run.random_share, rng)
        rows[row] = latency_rows(seen.replicas[choice : choice + 1], seen.request)[0]
        cluster.dispatch(choice)
    cluster.finish()
    outcomes = cluster.outcomes()
    kept = np.flatnonzero(outcomes.ok & (outcomes.ttft_s > 0))
    return LatencySamples(
        rows[kept], outcomes.ttft_s[kept], outcomes.tpot_s[kept], np.full(len(kept), run.load)
    )


def join(parts: Sequence[LatencySamples]) -> LatencySamples:
    """All samples of several runs."""
    return LatencySamples(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.ttft_s for part in parts]),
        np.concatenate([part.tpot_s for part in parts]),
        np.concatenate([part.load for part in parts]),
    )


def _choose(seen: Observation, random_share: float, rng: np.random.Generator) -> int:
    if rng.random() < random_share:
        return int(rng.choice(np.flatnonzero(seen.mask)))
    return int(np.argmin(np.where(seen.mask, seen.replicas[:, _MARGINAL_COST], np.inf)))


def _mix(
    scenario: Scenario, others: list[HardwareProfile], rng: np.random.Generator
) -> tuple[ReplicaSpec, ...]:
    """Two to eight replicas: half as in the scenario, half other hardware with the same limits."""
    specs = []
    for i in range(int(rng.integers(2, MOST_REPLICAS + 1))):
        spec = scenario.replicas[int(rng.integers(len(scenario.replicas)))]
        profile = spec.profile
        if others and rng.random() < 0.5:
            profile = with_limits(
                others[int(rng.integers(len(others)))],
                max_num_seqs=profile.max_num_seqs,
                max_batched_tokens=profile.max_batched_tokens,
            )
        slowdown = float(rng.uniform(1.0, 2.0)) if rng.random() < STRAGGLERS else 1.0
        specs.append(ReplicaSpec(f"{profile.gpu}-{i}", profile, slowdown))
    return tuple(specs)


def _other_profiles(scenario: Scenario) -> list[HardwareProfile]:
    model = scenario.replicas[0].profile.model.name
    own = {spec.profile.name for spec in scenario.replicas}
    known = [load_profile(name) for name in profile_names()]
    return [profile for profile in known if profile.model.name == model and profile.name not in own]
