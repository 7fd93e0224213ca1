"""What cannot be simulated is refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steersman.env import layout as at
from steersman.env.placement import check_roles, check_sharing
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Conditions, ReplicaSpec, Staleness


def check(replicas: Sequence[ReplicaSpec], staleness: Staleness, conditions: Conditions) -> None:
    """Refuse what a configuration file would not let through either, since it would never end."""
    if not replicas:
        raise ConfigError("a cluster needs at least one replica; 'replicas' is empty")
    if not (staleness.scrape_interval_s > 0 and 0 <= staleness.jitter < 1 and 0 <= staleness.loss <= 1):
        raise ConfigError(
            f"{staleness}: scrape_interval_s must be positive, jitter in [0, 1) and loss in [0, 1]"
        )
    _check_conditions(replicas, conditions)
    for spec in replicas:
        if not 1 <= spec.profile.pipeline_parallel <= at.MOST_STAGES:
            raise ConfigError(
                f"replica '{spec.replica_id}': pipeline_parallel = {spec.profile.pipeline_parallel} "
                f"must be within 1 and {at.MOST_STAGES}"
            )
        if not 0 < spec.slowdown < float("inf"):
            raise ConfigError(
                f"replica '{spec.replica_id}': slowdown = {spec.slowdown} must be positive"
            )
        if not 0 <= spec.cold_start_s < float("inf"):
            raise ConfigError(
                f"replica '{spec.replica_id}': cold_start_s = {spec.cold_start_s} must be 0 or more"
            )
        if min(spec.profile.max_num_seqs, spec.profile.max_batched_tokens) < 1:
            raise ConfigError(
                f"replica '{spec.replica_id}': max_num_seqs = {spec.profile.max_num_seqs} and "
                f"max_batched_tokens = {spec.profile.max_batched_tokens} must be at least 1"
            )


def _check_conditions(replicas: Sequence[ReplicaSpec], conditions: Conditions) -> None:
    adapters = conditions.adapters
    if adapters is not None and not (adapters.most >= 1 and 0 <= adapters.load_s < math.inf):
        raise ConfigError(f"{adapters}: most must be at least 1 and load_s 0 or more")
    patience_s = conditions.patience_s
    if patience_s is not None and not patience_s > 0:
        raise ConfigError(f"patience_s = {patience_s} must be positive; leave it out for ever")
    check_sharing(replicas, conditions.sharing)
    if conditions.disaggregation is not None:
        check_roles(replicas, conditions.disaggregation)
