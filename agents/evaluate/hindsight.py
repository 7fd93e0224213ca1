"""`clairvoyant-hindsight`: the choices that turn out best with everything known. How far is there to go?

The course is played by marginal cost with the true output lengths, and then its choices are improved,
one after the other, by what each of them really costs all requests (`env/hindsight.py`). Turns of
sessions arrive when the answers before them end: so after every pass the course is played again as it
would have gone, and the next pass starts from there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Course, Protocol
from steersman.agents.evaluate.references import cheapest
from steersman.env import engine
from steersman.env.cluster import Cluster
from steersman.env.hindsight import improved_choices
from steersman.env.vector import ClusterBatch

LEAD_S = 15.0
"""For so long before the measured window choices are improved too, to count in a state of their own."""
HORIZON_S = 20.0
"""Of later arrivals, for which a choice is charged."""
PASSES = 2
SPARE_SLOTS = 256
"""Room for requests in flight beyond what marginal cost needed."""


def in_hindsight(course: Course, protocol: Protocol) -> Cluster:
    """The course's cluster, drained, after the choices that were found.

    Raises:
        ConfigError: replicas share GPUs.
    """
    played = course.cluster(true_lengths=True)
    choices = _by_marginal_cost(played)
    slots = len(played.memory.sequences) + SPARE_SLOTS
    output_p50 = played.table.output_p50
    played.finish(protocol.drain_s)
    for _ in range(PASSES):
        start = course.cluster(true_lengths=True).memory
        start.grow(slots)
        choices = improved_choices(
            start,
            choices,
            output_p50,
            arrival_s=played.memory.outcomes["arrival_s"],
            parents=course.trace.parent,
            from_s=protocol.warmup_s - LEAD_S,
            until_s=course.end_s,
            horizon_s=HORIZON_S,
        )
        played = course.cluster(true_lengths=True)
        played.memory.grow(slots)
        engine.replay(played.memory.address, choices, output_p50)
        played.finish(protocol.drain_s)
    return played


def _by_marginal_cost(cluster: Cluster) -> NDArray[np.int64]:
    """Play all arrivals; which replica each went to, (rows of the trace,)."""
    choices = np.full(len(cluster.trace), -1, dtype=np.int64)
    batch = ClusterBatch([cluster])
    while (row := int(batch.next_requests()[0])) >= 0:
        seen = batch.observe()
        chosen = cheapest(seen)
        choices[row] = chosen[0]
        batch.dispatch(chosen, seen)
    return choices
