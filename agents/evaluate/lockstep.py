"""Plays policies on the same arrivals, each on a cluster of its own, all in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from steersman.agents.batch import Deciders
from steersman.agents.evaluate.course import Course, Protocol
from steersman.agents.evaluate.factories import PolicyFactory, policy_factory
from steersman.agents.evaluate.figures import summarise
from steersman.agents.evaluate.hindsight import in_hindsight
from steersman.agents.evaluate.references import Reference, look_ahead
from steersman.agents.evaluate.table import Run
from steersman.agents.guard import Guard
from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch

TOGETHER = 96
"""Clusters in one lockstep, about: more gain no speed, and take memory."""
LEAD_S = 3.0
"""For so long before the measured window the lookahead decides too, to count in a state of its own."""
_REPORTS = 50
"""Calls of `on_progress` per lockstep, about."""

_MARGINAL = policy_factory("marginal-cost")


class Entry(NamedTuple):
    """Who plays, and on what."""

    name: str
    contestant: PolicyFactory | Reference
    course: Course


def play(
    entries: Sequence[Entry], protocol: Protocol, on_progress: Callable[[float], None]
) -> list[Run]:
    """The run of every entry, in their order.

    Args:
        on_progress: called now and then with the runs played since the last call, fractions included.
    """
    runs: list[Run | None] = [None] * len(entries)
    for i, entry in enumerate(entries):
        if entry.contestant is Reference.HINDSIGHT:
            runs[i] = _run(entry, in_hindsight(entry.course, protocol), protocol, {})
            on_progress(1.0)
    left = [i for i, run in enumerate(runs) if run is None]
    size = -(-len(left) // -(-len(left) // TOGETHER)) if left else 1
    for first in range(0, len(left), size):
        part = left[first : first + size]
        places = [_Place(entries[i]) for i in part]
        _to_the_end(places, protocol.warmup_s, on_progress)
        for i, place in zip(part, places, strict=True):
            runs[i] = place.finish(protocol)
    return [run for run in runs if run is not None]


def _run(entry: Entry, drained: Cluster, protocol: Protocol, fallbacks: dict[str, int]) -> Run:
    course = entry.course
    figures = summarise(
        drained.outcomes(),
        start_s=protocol.warmup_s,
        end_s=course.end_s,
        replicas=len(course.scenario.replicas),
    )
    return Run(entry.name, course.cell, course.seed, figures, fallbacks)


class _Place:
    """One policy on one cluster."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        contestant, course = entry.contestant, entry.course
        self.replicas = len(course.scenario.replicas)
        self._looks_ahead = contestant is Reference.LOOKAHEAD
        self.cluster = course.cluster(true_lengths=isinstance(contestant, Reference))
        factory = _MARGINAL if isinstance(contestant, Reference) else contestant
        self.policy = factory(course.seed, lambda: self.cluster.now_s)

    def asks_truth(self, start_s: float) -> bool:
        """Whether the pending request is to be decided by looking ahead: only those that matter."""
        return self._looks_ahead and start_s - LEAD_S <= self.cluster.now_s < self._entry.course.end_s

    def finish(self, protocol: Protocol) -> Run:
        """Drain, and sum up."""
        self.cluster.finish(protocol.drain_s)
        fallbacks: dict[str, int] = {}
        if isinstance(self.policy, Guard):
            fallbacks = {reason.value: count for reason, count in self.policy.fallbacks.items()}
        return _run(self._entry, self.cluster, protocol, fallbacks)


def _to_the_end(places: Sequence[_Place], start_s: float, on_progress: Callable[[float], None]) -> None:
    """All arrivals. When a quarter of the clusters have had theirs, the others go on by themselves."""
    progress = _Progress(places, on_progress)
    while places:
        batch = ClusterBatch([place.cluster for place in places])
        deciders = Deciders([place.policy for place in places], [place.replicas for place in places])
        while True:
            asked = batch.next_requests() >= 0
            left = int(np.count_nonzero(asked))
            if 4 * left <= 3 * len(places):
                break
            seen = batch.observe()
            choices = deciders.choices(seen, asked)
            truthful = [i for i in np.flatnonzero(asked).tolist() if places[i].asks_truth(start_s)]
            if truthful:
                choices[truthful] = look_ahead([places[i].cluster for i in truthful])
            batch.dispatch(choices, seen)
            progress.advance(left)
        places = [place for place, is_left in zip(places, asked.tolist(), strict=True) if is_left]
    progress.close()


class _Progress:
    """Tells how many runs have been played, not too often."""

    def __init__(self, places: Sequence[_Place], on_progress: Callable[[float], None]) -> None:
        self._runs = float(len(places))
        self._arrivals = sum(len(place.cluster.trace) for place in places)
        self._told = 0
        self._played = 0
        self._on_progress = on_progress

    def advance(self, arrivals: int) -> None:
        """So many more have been decided."""
        self._played += arrivals
        if (self._played - self._told) * _REPORTS > self._arrivals:
            self._tell(self._played)

    def close(self) -> None:
        """That was all."""
        self._tell(self._arrivals)

    def _tell(self, played: int) -> None:
        share = (played - self._told) / self._arrivals if self._arrivals else 1.0
        self._on_progress(self._runs * share)
        self._told = played
