"""A scenario's pool at another size, with its kinds of replicas in the same proportions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Conditions, ReplicaSpec, Scenario


def resized(scenario: Scenario, replicas: int) -> Scenario:
    """The scenario with so many replicas; its name, traffic and saturation stay as they are.

    Kinds are apportioned by the method of Webster and Sainte-Laguë: each next replica is of the kind
    with the largest w / (2 k + 1), where w is how many the scenario has of it and k how many the pool
    has already; the first kind among equals. So a larger pool holds every smaller one, the scenario's
    own size gives its own pool, and no kind is ever further from its share than it must be. Kinds
    stand together, in the scenario's order.

    Args:
        replicas: at least one.

    Raises:
        ConfigError: none are left, or something befalls single replicas (`conditions`).
    """
    if replicas < 1:
        raise ConfigError(f"replicas = {replicas} must be at least 1")
    if scenario.conditions != Conditions():
        raise ConfigError(
            f"scenario '{scenario.name}': its events, patience, sharing or roles are of its own pool; "
            "give one without them to change its size"
        )
    kinds, weights = _kinds(scenario.replicas)
    counts = [0] * len(kinds)
    for _ in range(replicas):
        quotients = [weight / (2 * count + 1) for weight, count in zip(weights, counts, strict=True)]
        counts[quotients.index(max(quotients))] += 1
    pool: list[ReplicaSpec] = []
    for kind, count in zip(kinds, counts, strict=True):
        names = [f"{kind.profile.gpu}-{len(pool) + i}" for i in range(count)]
        pool += [replace(kind, replica_id=name) for name in names]
    return replace(scenario, replicas=tuple(pool))


def _kinds(replicas: Sequence[ReplicaSpec]) -> tuple[list[ReplicaSpec], list[int]]:
    """One replica of each kind, and how many there are of it."""
    kinds: list[ReplicaSpec] = []
    counts: list[int] = []
    for spec in replicas:
        for i, kind in enumerate(kinds):
            if replace(spec, replica_id=kind.replica_id) == kind:
                counts[i] += 1
                break
        else:
            kinds.append(spec)
            counts.append(1)
    return kinds, counts
