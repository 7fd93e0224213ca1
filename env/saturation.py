"""How many requests per second a scenario can complete: the unit in which load is measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steersman.env.cluster import Cluster
from steersman.env.scenario import load_source
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.schema import ReplicaSpec, Scenario
from steersman.traces.trace import Trace

REQUESTS_PER_REPLICA = 1200
"""Enough that most of the run is in the steady state, with every replica's batch full."""
WARM_UP = 0.25
"""Share of the busy time that is not counted."""
_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


def measure_saturation(
    scenario: Scenario, *, seed: int = 0, requests_per_replica: int = REQUESTS_PER_REPLICA
) -> float:
    """Completed requests per second in steady state, with every replica always having requests waiting.

    All requests arrive at once and are dispatched by marginal cost (default constants). Counted are
    completions between the end of the warm-up and the moment when the first replica's queue is empty,
    so an uneven share shortens the measurement and does not bias it. (EVALUATION, "Cells".)

    Args:
        seed: of the sample of requests.
        requests_per_replica: size of the backlog.

    Raises:
        ConfigError: the backlog is too small for a steady state.
    """
    source = load_source(scenario)
    count = requests_per_replica * len(scenario.replicas)
    trace = _backlog(source, count, seed)
    cluster = Cluster(
        scenario.replicas,
        trace,
        staleness=scenario.staleness,
        prefix_cache=scenario.prefix_cache,
        seed=seed,
    )
    while cluster.next_request() is not None:
        observation = cluster.observe()
        cost = np.where(observation.mask, observation.replicas[:, _MARGINAL_COST], np.inf)
        cluster.dispatch(int(cost.argmin()))
    cluster.finish(drain_s=1e7)
    outcomes = cluster.outcomes()
    used = [outcomes.replica == replica for replica in range(len(scenario.replicas))]
    dry_s = min(float(np.nanmax(outcomes.ttft_s[rows], initial=0.0)) for rows in used)
    start_s = WARM_UP * dry_s
    ends = (outcomes.e2e_s > start_s) & (outcomes.e2e_s <= dry_s)
    if int(ends.sum()) < len(scenario.replicas):
        raise ConfigError(
            f"scenario '{scenario.name}': {requests_per_replica} requests per replica are too few to "
            "saturate it; raise requests_per_replica"
        )
    return float(ends.sum() / (dry_s - start_s))


def _backlog(source: Trace, count: int, seed: int) -> Trace:
    """`count` requests of the trace that arrive together; no turn waits for another."""
    rate_rps = max(source.rate_rps, 1.0)
    sample = block_bootstrap(source, rate_rps=rate_rps, duration_s=count / rate_rps, seed=seed)
    n = len(sample)
    return sample.replace(arrival_s=np.zeros(n), parent=np.full(n, -1, dtype=np.int64))


def estimate_saturation(replicas: Sequence[ReplicaSpec], trace: Trace) -> float:
    """Saturation in closed form, for pools too many to measure: within about 10 % of it.

    With a full batch of N, a request takes its share of `output` decode iterations and its own prefill:
    1 / (output * T(N) / N + prefill). N is what slots and KV memory hold; of the prompt only blocks
    that no earlier request had are computed.
    """
    prompt = float(np.mean(trace.input_tokens))
    output = float(np.mean(np.maximum(trace.output_tokens, 1)))
    distinct = len(np.unique(trace.block_hashes))
    repeated = (len(trace.block_hashes) - distinct) * trace.block_tokens / max(len(trace), 1)
    uncached = max(prompt - repeated, 1.0)
    total = 0.0
    for spec in replicas:
        profile = spec.profile
        context = prompt + 0.5 * output
        batch = min(float(profile.max_num_seqs), max(profile.kv_capacity_tokens / context, 1.0))
        iteration_s = (
            profile.host_overhead_s
            + profile.decode_base_s
            + batch * (profile.decode_seq_s + profile.decode_context_s * context)
        )
        prefill_s = uncached * (profile.prefill_token_s + profile.prefill_token2_s * prompt)
        total += 1.0 / (spec.slowdown * (output * iteration_s / batch + prefill_s))
    return total
