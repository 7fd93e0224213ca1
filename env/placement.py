"""Whether replicas fit their GPUs, and requests their replicas: checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.scenario import Disaggregation, ReplicaSpec, SharedGpu
from steersman.traces.trace import Trace

LARGEST_SHARE = 0.7
"""Of the allocatable memory of a shared GPU, for one model (SPEC G5)."""
RESERVE = (0.05, 0.08)
"""Share of a GPU's memory that must and may be kept free."""
SLICE_MS = (10.0, 50.0)
MPS_OVERHEAD = (0.03, 0.05)
_GIB = 1024**3


def check_sharing(replicas: Sequence[ReplicaSpec], sharing: Sequence[SharedGpu]) -> None:
    """Refuse GPUs that cannot be shared so.

    Raises:
        ConfigError: a replica is unknown, placed twice or on another kind of GPU, a number is out of its
            bounds, or memory does not suffice; with the arithmetic.
    """
    placed: set[int] = set()
    for gpu in sharing:
        what = f"sharing of replicas {list(gpu.replicas)}"
        for replica in gpu.replicas:
            if not 0 <= replica < len(replicas):
                raise ConfigError(f"{what}: replica {replica} is not in 0..{len(replicas) - 1}")
            if replica in placed:
                raise ConfigError(f"{what}: replica {replica} is placed twice; leave one of them out")
            placed.add(replica)
        _check_numbers(gpu, what)
        _check_memory(gpu, [replicas[replica] for replica in gpu.replicas], what)


def check_roles(replicas: Sequence[ReplicaSpec], split: Disaggregation) -> None:
    """Refuse a division of labour that cannot work.

    Raises:
        ConfigError: a replica is unknown or has two roles, a role has none, or transfers would not end.
    """
    for role, members in (("prefill", split.prefill), ("decode", split.decode)):
        if not members:
            raise ConfigError(f"disaggregation: '{role}' is empty; name at least one replica")
        for replica in members:
            if not 0 <= replica < len(replicas):
                raise ConfigError(
                    f"disaggregation: {role} replica {replica} is not in 0..{len(replicas) - 1}"
                )
    both = sorted(set(split.prefill) & set(split.decode))
    if both:
        raise ConfigError(
            f"disaggregation: replica {both[0]} is in 'prefill' and in 'decode'; "
            "one that is in neither does both"
        )
    if not (split.bandwidth_gb_s > 0 and 0 <= split.latency_s < float("inf")):
        raise ConfigError(
            f"disaggregation: bandwidth_gb_s = {split.bandwidth_gb_s} must be positive and "
            f"latency_s = {split.latency_s} 0 or more"
        )


def check_window(replicas: Sequence[ReplicaSpec], trace: Trace) -> None:
    """Refuse a trace with requests that no replica's model, or no replica's KV cache, can hold.

    Raises:
        TraceError: with the number of such requests and the first of them.
    """
    window = max(spec.profile.model.context_window_tokens for spec in replicas)
    cache = max(spec.profile.kv_capacity_tokens for spec in replicas)
    total = trace.input_tokens + np.maximum(trace.output_tokens, 1)
    for most, what, remedy in (
        (window, f"context window of {window} tokens", "take a model with a longer one"),
        (cache, f"KV cache of any replica, at most {cache} tokens", "raise kv_capacity_tokens"),
    ):
        over = np.flatnonzero(total > most)
        if len(over):
            row = int(over[0])
            raise TraceError(
                f"trace '{trace.name}': {len(over)} of {len(trace)} requests exceed the {what}, the "
                f"first in row {row}: {trace.input_tokens[row]} prompt + {trace.output_tokens[row]} "
                f"output tokens; leave them out or {remedy}"
            )


def _check_numbers(gpu: SharedGpu, what: str) -> None:
    size = len(gpu.replicas)
    if size < 2:
        raise ConfigError(f"{what}: a shared GPU has at least two replicas; drop the entry")
    _within(what, "memory_reserve", gpu.memory_reserve, RESERVE)
    if gpu.mode == "mps":
        _within(what, "overhead", gpu.overhead, MPS_OVERHEAD)
    else:
        _within(what, "slice_ms", gpu.slice_ms, SLICE_MS)
    for key, values in (("weights", gpu.weights), ("demands", gpu.demands)):
        if values and (len(values) != size or not min(values) > 0):
            raise ConfigError(f"{what}: {key} = {list(values)} must be {size} positive numbers")


def _within(what: str, key: str, value: float, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if not low <= value <= high:
        raise ConfigError(f"{what}: {key} = {value:g} must be within {low:g} and {high:g}")


def _check_memory(gpu: SharedGpu, residents: list[ReplicaSpec], what: str) -> None:
    first = residents[0].profile
    for spec in residents:
        profile = spec.profile
        if (profile.gpu, profile.gpu_memory_gib) != (first.gpu, first.gpu_memory_gib):
            raise ConfigError(
                f"{what}: '{spec.replica_id}' is on {profile.gpu} of {profile.gpu_memory_gib:g} GiB and "
                f"'{residents[0].replica_id}' on {first.gpu} of {first.gpu_memory_gib:g} GiB; "
                "replicas that share are on the same"
            )
    allocatable = first.gpu_memory_gib * (1.0 - gpu.memory_reserve)
    most = LARGEST_SHARE * allocatable
    taken = [_taken_gib(spec) for spec in residents]
    arithmetic = f"{first.gpu_memory_gib:g} GiB less {gpu.memory_reserve:.0%} reserve"
    for spec, gib in zip(residents, taken, strict=True):
        if gib > most:
            raise ConfigError(
                f"{what}: '{spec.replica_id}' takes {_sum(spec)} GiB (weights + KV cache), more than "
                f"{LARGEST_SHARE:.0%} of {allocatable:.1f} GiB ({arithmetic}) = {most:.1f} GiB; "
                "lower kv_capacity_tokens or take a smaller model"
            )
    if sum(taken) > allocatable:
        terms = " + ".join(f"{gib:.1f}" for gib in taken)
        raise ConfigError(
            f"{what}: {terms} = {sum(taken):.1f} GiB (weights + KV caches) exceed {allocatable:.1f} GiB "
            f"({arithmetic}); lower kv_capacity_tokens"
        )


def _taken_gib(spec: ReplicaSpec) -> float:
    return spec.profile.model.weights_gib + _kv_gib(spec)


def _kv_gib(spec: ReplicaSpec) -> float:
    return spec.profile.kv_capacity_tokens * spec.profile.model.kv_bytes_per_token / _GIB


def _sum(spec: ReplicaSpec) -> str:
    weights, kv = spec.profile.model.weights_gib, _kv_gib(spec)
    return f"{weights:.1f} + {kv:.1f} = {weights + kv:.1f}"
