"""How many requests per second a scenario can complete: the unit in which load is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steersman.env.cluster import Cluster
from steersman.env.scenario import Split, for_split, load_source
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.schema import HardwareProfile
from steersman.traces.trace import Trace

SHARING = 1.5
"""By how much a batch may exceed what fits if no two prompts shared a block."""
BACKLOG = 16
"""Requests that wait at a replica on average, beyond a full batch."""
ROUNDS = 9
"""Requests of a measurement over requests in flight, at least."""
FEWEST_REQUESTS = 8000
WARM_UP = 0.5
"""Share that is not counted: until the longest of the first answers end, what runs is not typical."""
_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


def measure_saturation(
    scenario: Scenario, split: Split = "all", *, seed: int = 0, requests: int | None = None
) -> float:
    """Completed requests per second in steady state with a constant backlog (EVALUATION, "Cells").

    The number of requests in flight is held at full batches (of what slots and KV memory hold) plus a
    backlog: whenever one ends the next arrives, and is dispatched by marginal cost (default constants).
    Nothing befalls the replicas, and those on standby stay there.

    Args:
        split: whose requests.
        seed: of the sample of requests.
        requests: how many to play; more are less noisy.

    Raises:
        ValueError: too few requests to get past the warm-up.
    """
    serving = [spec for spec in scenario.replicas if not spec.standby]
    source = load_source(scenario, split)
    estimate = SaturationEstimate(source)
    in_flight = sum(_held(estimate, spec.profile) + BACKLOG for spec in serving)
    count = max(ROUNDS * in_flight, FEWEST_REQUESTS) if requests is None else requests
    if count < 3 * in_flight:
        raise ValueError(f"requests = {count} must be at least {3 * in_flight}, thrice those in flight")
    # Sessions interleave as they would at saturation: that decides what a prefix cache can hold.
    rate_rps = max(source.rate_rps, estimate.of(scenario.replicas))
    trace = _closed_loop(source, rate_rps, in_flight, count, seed)
    cluster = Cluster(
        scenario.replicas,
        trace,
        staleness=scenario.staleness,
        prefix_cache=scenario.prefix_cache,
        seed=seed,
        conditions=replace(scenario.conditions, changes=(), patience_s=None),
    )
    while cluster.next_request() is not None:
        observation = cluster.observe()
        cost = np.where(observation.mask, observation.replicas[:, _MARGINAL_COST], np.inf)
        cluster.dispatch(int(cost.argmin()))
    cluster.finish(drain_s=1e7)
    outcomes = cluster.outcomes()
    ends_s = np.sort((outcomes.arrival_s + outcomes.e2e_s)[outcomes.ok])
    first, last = round(WARM_UP * count), len(ends_s) - in_flight
    return float((last - first) / (ends_s[last - 1] - ends_s[first - 1]))


def _held(estimate: SaturationEstimate, profile: HardwareProfile) -> int:
    """Requests that a replica surely cannot exceed in a batch. More in flight would only wait longer,
    and find their prefixes evicted."""
    return min(profile.max_num_seqs, math.ceil(SHARING * estimate.batch(profile)))


def with_traffic(scenario: Scenario, trace: str | None = None, split: Split = "all") -> Scenario:
    """A scenario whose saturation is known, with another trace if one is given.

    Saturation depends on the trace: with another one, or where the scenario has none, it is measured,
    on the requests of the split that will be played.
    """
    if trace is not None and trace != scenario.trace:
        scenario = replace(
            scenario, trace=trace, saturation_rps=None, split_saturation_rps={}, split_traces={}
        )
    if for_split(scenario, split).saturation_rps is None:
        scenario = replace(scenario, saturation_rps=measure_saturation(scenario, split))
    return scenario


def _closed_loop(source: Trace, rate_rps: float, in_flight: int, count: int, seed: int) -> Trace:
    """`count` requests of a trace, of which so many are in flight: each waits for an earlier one."""
    sample = block_bootstrap(source, rate_rps=rate_rps, duration_s=count / rate_rps, seed=seed)
    n = len(sample)
    return sample.replace(
        arrival_s=np.zeros(n),
        parent=np.maximum(np.arange(n) - in_flight, -1),
        think_time_s=np.zeros(n),
    )


class SaturationEstimate:
    """Saturation in closed form, for pools too many to measure: within about 10 % of it.

    With a full batch of N, a request takes its share of `output` decode iterations and its own prefill:
    1 / (output * T(N) / N + prefill). N is what slots and KV memory hold; of the prompt only blocks
    that no earlier request had are computed.

    Args:
        trace: of which mean lengths and the share of repeated prefixes are taken.
        measured: a scenario; if its saturation is known, every estimate is corrected by the factor by
            which the closed form misses it.
    """

    def __init__(self, trace: Trace, measured: Scenario | None = None) -> None:
        self._prompt = float(np.mean(trace.input_tokens))
        self._output = float(np.mean(np.maximum(trace.output_tokens, 1)))
        distinct = len(np.unique(trace.block_hashes))
        repeated = (len(trace.block_hashes) - distinct) * trace.block_tokens / max(len(trace), 1)
        self._uncached = max(self._prompt - repeated, 1.0)
        self._factor = 1.0
        if measured is not None and measured.saturation_rps is not None:
            self._factor = measured.saturation_rps / self.of(measured.replicas)

    def of(self, replicas: Sequence[ReplicaSpec]) -> float:
        """Requests per second at which these replicas saturate."""
        there = [spec for spec in replicas if not spec.standby]
        return self._factor * sum(self._one(spec.profile) / spec.slowdown for spec in there)

    def batch(self, profile: HardwareProfile) -> float:
        """Requests that run at once in a full replica, by its slots and its KV memory."""
        context = self._prompt + 0.5 * self._output
        return min(float(profile.max_num_seqs), max(profile.kv_capacity_tokens / context, 1.0))

    def _one(self, profile: HardwareProfile) -> float:
        context = self._prompt + 0.5 * self._output
        batch = self.batch(profile) / profile.pipeline_parallel  # of each of the batches in flight
        iteration_s = (
            profile.host_overhead_s
            + profile.decode_base_s
            + batch * (profile.decode_seq_s + profile.decode_context_s * context)
        )
        prefill_s = self._uncached * (profile.prefill_token_s + profile.prefill_token2_s * self._prompt)
        return profile.pipeline_parallel / (self._output * iteration_s / batch + prefill_s)
