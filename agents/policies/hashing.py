"""`bounded-hash`: consistent hashing of sessions, with bounded loads."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.identity import SESSION, TENANT, identity_key
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_INFLIGHT = REPLICA_INDEX["inflight"]


class BoundedHashOptions(Settings):
    """Options of `bounded-hash`."""

    slack: float = Field(
        default=0.25,
        ge=0.0,
        description="By how much a load may exceed the mean (Envoy: 125 %).",
    )
    virtual_nodes: int = Field(default=100, ge=1, le=10_000, description="Points of one on the ring.")


class BoundedHash:
    """A session goes to its place on a hash ring, or on to the next replica that is not full.

    Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (SODA 2018): with m
    replicas and k requests in flight, this one included, none may hold more than
    ceil((1 + slack) * k / m). The key is the session, else the tenant; a request without either goes
    where the fewest are in flight. It goes by position: another number of replicas is another ring.
    """

    name: ClassVar[str] = "bounded-hash"
    version: ClassVar[str] = ""

    def __init__(self, options: BoundedHashOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng
        self._ring = _Ring(0, options.virtual_nodes)

    def decide(self, observation: Observation) -> Decision:
        """Walk the ring from the session's key."""
        mask, inflight = observation.mask, observation.replicas[:, _INFLIGHT]
        key = int(observation.identity[SESSION]) or int(observation.identity[TENANT])
        if not key or not mask.any():
            return argmax_decision(-inflight, mask, self._rng, policy=self.name)
        if self._ring.replicas != len(mask):
            self._ring = _Ring(len(mask), self._options.virtual_nodes)
        load = np.where(np.isfinite(inflight), inflight, 0.0)
        fair = (float(load.sum(where=mask)) + 1.0) / int(mask.sum())
        room = mask & (load + 1.0 <= math.ceil((1.0 + self._options.slack) * fair))
        choice = self._ring.first(key, room if room.any() else mask)
        return Decision(choice, self.name)


class _Ring:
    """Points of replicas on a circle of 63-bit numbers."""

    def __init__(self, replicas: int, virtual_nodes: int) -> None:
        self.replicas = replicas
        points = [
            (identity_key(f"{replica}/{node}"), replica)
            for replica in range(replicas)
            for node in range(virtual_nodes)
        ]
        points.sort()
        self._places = np.array([place for place, _ in points], dtype=np.int64)
        self._owners = np.array([owner for _, owner in points], dtype=np.int64)

    def first(self, key: int, allowed: NDArray[np.bool_]) -> int:
        """The owner of the first point from the key on that is allowed; NO_CANDIDATE if none is."""
        start = int(np.searchsorted(self._places, key))
        taken = allowed[self._owners]
        later = np.flatnonzero(taken[start:])
        if len(later):
            return int(self._owners[start + later[0]])
        earlier = np.flatnonzero(taken[:start])
        return int(self._owners[earlier[0]]) if len(earlier) else NO_CANDIDATE
