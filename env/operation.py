"""How a pool is operated, written into a cluster's memory: shared GPUs, adapters, roles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steersman.env import layout as at
from steersman.env.memory import Memory
from steersman.predictors import ledger as L
from steersman.traces.scenario import Conditions, Disaggregation, ReplicaSpec


def operate(conditions: Conditions, replicas: Sequence[ReplicaSpec], memory: Memory) -> None:
    """Write down how the pool is operated."""
    cluster = memory.cluster[0]
    cluster["priority_preemption"] = conditions.priority_preemption
    cluster["adapter_load_s"] = conditions.adapters.load_s if conditions.adapters else 0.0
    cluster["coupled"] = bool(conditions.sharing)
    for number, gpu in enumerate(conditions.sharing):
        rows = list(gpu.replicas)
        memory.shares["gpu"][rows] = number
        memory.shares["kind"][rows] = at.MPS if gpu.mode == "mps" else at.TIME_SLICE
        memory.shares["turn_s"][rows] = np.array(gpu.weights or 1.0) * gpu.slice_ms / 1000.0
        memory.shares["preemptive"][rows] = gpu.preemptive
        memory.shares["overhead"][rows] = gpu.overhead
        memory.shares["demand"][rows] = gpu.demands or 1.0
    if conditions.disaggregation is not None:
        _divide(conditions.disaggregation, replicas, memory)


def _divide(split: Disaggregation, replicas: Sequence[ReplicaSpec], memory: Memory) -> None:
    """Give replicas their roles."""
    cluster = memory.cluster[0]
    cluster["coupled"] = True
    cluster["transfer_latency_s"] = split.latency_s
    kv_bytes = replicas[0].profile.model.kv_bytes_per_token
    cluster["transfer_token_s"] = kv_bytes / (split.bandwidth_gb_s * 1e9)
    memory.replicas["role"][list(split.prefill)] = at.PREFILL
    memory.replicas["role"][list(split.decode)] = at.DECODE
    memory.ledger[list(split.decode), L.HEALTHY] = 0.0
