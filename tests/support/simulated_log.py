"""What a router would have logged of a simulated service: real records, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from steersman.agents.policies import make_policy
from steersman.agents.policy import Policy
from steersman.env.bulk import output_quantiles
from steersman.env.cluster import Cluster
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import load_scenario
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.predictors.latency import LATENCY_OUTPUTS, AnalyticLatency
from steersman.predictors.length import FallbackLength
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.readers import load_trace
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Decision, Observation
from steersman.traces.trace import Trace

START_UNIX_S = 1_700_000_000.0


class Exploring:
    """A policy that now and then chooses evenly, and says how likely its choice was."""

    def __init__(self, policy: Policy, share: float, seed: int) -> None:
        self._policy, self._share = policy, share
        self._rng = np.random.default_rng(seed)

    def decide(self, seen: Observation) -> Decision:
        """One decision; the policy underneath must be certain."""
        best = self._policy.decide(seen)
        count = int(np.count_nonzero(seen.mask))
        choice = best.choice
        if self._rng.random() < self._share:
            choice = int(np.flatnonzero(seen.mask)[self._rng.integers(count)])
        greedy = (1.0 - self._share) * best.propensity if choice == best.choice else 0.0
        return replace(best, choice=choice, propensity=greedy + self._share / count)


def demo_trace(requests: int, *, load: float = 0.7, seed: int = 1) -> Trace:
    """Traffic for the demo cluster."""
    scenario, source = load_scenario("demo"), _source()
    rate_rps = load * SaturationEstimate(source, scenario).of(scenario.replicas)
    return block_bootstrap(source, rate_rps=rate_rps, duration_s=requests / rate_rps, seed=seed)


@cache
def _source() -> Trace:
    return load_trace("azure-chat")


def simulated_log(
    trace: Trace,
    replicas: Sequence[ReplicaSpec],
    *,
    policy: str | Policy = "marginal-cost",
    explore: float = 0.05,
    seed: int = 0,
    slow_at: tuple[float, float] | None = None,
) -> list[OutcomeRecord]:
    """Records in the order of arrival.

    Args:
        explore: share of decisions that are drawn evenly.
        slow_at: from this time (s) on all replicas take so many times as long.
    """
    length, latency = FallbackLength(), AnalyticLatency()
    quantiles = output_quantiles(trace, length)
    cluster = Cluster(replicas, trace, output_quantiles=quantiles, seed=seed)
    chosen = make_policy(policy, seed=seed) if isinstance(policy, str) else policy
    decider = Exploring(chosen, explore, seed)
    ids = tuple(spec.replica_id for spec in replicas)
    known: dict[int, dict[str, object]] = {}
    while (row := cluster.next_request()) is not None:
        if slow_at is not None and cluster.now_s >= slow_at[0]:
            for replica in range(len(replicas)):
                cluster.set_slowdown(replica, slow_at[1])
            slow_at = None
        seen = cluster.observe()
        decision = decider.decide(seen)
        there = seen.replicas[decision.choice]
        predicted = latency.predict(there[None], seen.request)[0]
        known[row] = {
            "decided_at_s": cluster.now_s,
            "replica_ids": ids,
            "state": cluster.state.copy(),
            "match_tokens": cluster.match_tokens().copy(),
            "mask": seen.mask.copy(),
            "request_features": seen.request.copy(),
            "choice": decision.choice,
            "replica_id": ids[decision.choice],
            "served_by": ids[decision.choice],
            "policy": decision.policy,
            "policy_version": decision.version,
            "propensity": decision.propensity,
            "scores": decision.scores,
            "output_p50": float(quantiles[row, 0]),
            "output_p90": float(quantiles[row, 1]),
            "estimated_ttft_s": float(there[REPLICA_INDEX["raw_ttft_s"]]),
            "estimated_tpot_s": float(there[REPLICA_INDEX["raw_tpot_s"]]),
            "ttft_slo_s": float(seen.request[REQUEST_INDEX["ttft_slo_s"]]),
            "tpot_slo_s": float(seen.request[REQUEST_INDEX["tpot_slo_s"]]),
            **dict(zip(LATENCY_OUTPUTS, predicted.tolist(), strict=True)),
        }
        cluster.dispatch(decision.choice)
    cluster.finish()
    outcomes = cluster.outcomes()
    records = []
    for row, facts in known.items():
        request = replace(trace.request(row), model="m")
        decision = Decision(-1, "")
        record = OutcomeRecord.of(
            request,
            decision,
            outcomes.outcome(row),
            arrival_unix_s=START_UNIX_S + float(outcomes.arrival_s[row]),
            **facts,
        )
        records.append(record)
    return records


def write_log(directory: Path, records: Sequence[OutcomeRecord]) -> Path:
    """The records as a log on disk."""
    with OutcomeLogWriter(directory, queue_records=10**6) as log:
        for record in records:
            assert log.append(record)
    return directory
