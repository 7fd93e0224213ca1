"""The queue in front of simulated clusters: the same `RequestQueue` as in the router.

The router looks at its queue whenever an answer ends, a first token comes or metrics are scraped. Here
it looks at every arrival, after every dispatch and each `LOOK_S`, about an engine's iteration, in which
nothing ends anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.agents.queueing.lane import Held
from steersman.agents.queueing.queue import RequestQueue, Turn
from steersman.agents.queueing.saturation import has_room, late_after_s, narrowed, work_s
from steersman.agents.queueing.settings import QueueSettings
from steersman.env.layout import NONE
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Observation

LOOK_S = 0.02
"""Between two looks at a queue of which nobody could go."""


class QueuedCluster:
    """One cluster of a batch, its policy, and the requests held in front of it."""

    def __init__(self, batch: ClusterBatch, index: int, policy: Policy, settings: QueueSettings) -> None:
        self._batch = batch
        self._index = index
        self._cluster = batch.clusters[index]
        self._policy = policy
        self._settings = settings
        self._turn: Turn | None = None
        self.queue = RequestQueue(settings)
        self.look_s = np.inf
        """When to look at the queue next."""
        self.deadline_s = np.inf
        """When arrivals will have been over for too long."""
        self.drain_s = 600.0

    def begin(self, row: int, now_s: float) -> bool:
        """Find out whom to ask about, if nobody has just arrived; False: nobody.

        Args:
            row: the pending request, NONE without.
            now_s: the cluster's clock.
        """
        self._turn = None
        if row != NONE:
            self.deadline_s = now_s + self.drain_s
            return True
        for held in self.queue.too_late(now_s):
            self._refuse(held)
        self._turn = self.queue.first(now_s)
        if self._turn is None or now_s > self.deadline_s:
            self.look_s = np.inf
            return False
        self._batch.take_up(self._index, self._turn.held.tag)
        return True

    def decide(self, row: int, now_s: float, seen: Observation) -> int | None:
        """Choose a replica for the pending request; None: it is held."""
        turn, priority = self._turn, int(self._cluster.trace.priority[row])
        room = seen.mask
        if self._settings.enabled:
            room = has_room(seen, self._settings, priority if turn is None else turn.level)
        if turn is None and len(self.queue):
            # Who has just come waits with the others; whose turn it is will be seen at once.
            self.look_s = now_s
        elif room.any() or not seen.mask.any():
            if turn is not None:
                self.queue.take(turn.held, now_s)
            self.look_s = now_s if len(self.queue) else np.inf
            return self._policy.decide(narrowed(seen, room)).choice
        else:
            self.look_s = now_s + LOOK_S
        self._batch.hold(self._index)
        if turn is None:
            held = Held(
                priority=priority,
                arrival_s=now_s,
                work_s=work_s(seen),
                late_at_s=now_s + late_after_s(seen),
                tag=row,
            )
            for worst in self.queue.offer(held):
                self._refuse(worst)
        return None

    def _refuse(self, held: Held) -> None:
        self._batch.take_up(self._index, held.tag)
        self._batch.refuse(self._index)


def play_queued(
    batch: ClusterBatch,
    policies: Sequence[Policy],
    settings: Sequence[QueueSettings],
    *,
    drain_s: float = 600.0,
    on_decided: Callable[[int], None] | None = None,
) -> list[QueuedCluster]:
    """Play all arrivals, and what was held when they stopped, for at most `drain_s` more.

    Args:
        batch: clusters at the start of their traces; to be finished by the caller.
        policies: of each; they see only the candidates that have room.
        settings: of the queue in front of each.
        on_decided: told the number of arrivals since the last call.
    """
    places = [
        QueuedCluster(batch, i, policy, options)
        for i, (policy, options) in enumerate(zip(policies, settings, strict=True))
    ]
    look_s = np.full(len(places), np.inf)
    choices = np.full(len(places), NO_CANDIDATE, dtype=np.int64)
    for place in places:
        place.drain_s = drain_s
    while True:
        rows = batch.next_requests(look_s)
        now_s = batch.now_s
        asked = [
            i
            for i, place in enumerate(places)
            if (rows[i] != NONE or np.isfinite(look_s[i])) and place.begin(int(rows[i]), float(now_s[i]))
        ]
        if asked:
            seen = batch.observe()
            for i in asked:
                single = seen.single(i, len(batch.clusters[i].replicas))
                choice = places[i].decide(int(rows[i]), float(now_s[i]), single)
                if choice is not None:
                    choices[i] = choice
            batch.dispatch(choices, seen)
        elif (rows == NONE).all() and not np.isfinite(look_s).any():
            return places
        for i, place in enumerate(places):
            look_s[i] = place.look_s
        if on_decided is not None:
            on_decided(int((rows != NONE).sum()))
