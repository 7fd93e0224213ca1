"""The compiled engine does what a plain Python one does."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Priority
from tests.env.worlds import play, request, small_profile, trace_of
from tests.parity.plain_engine import PlainEngine, Sequence

Reads = tuple[tuple[int, float], ...]
LENGTHS = st.tuples(st.floats(0.0, 0.2), st.integers(1, 300), st.integers(1, 80), st.integers(0, 3))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(LENGTHS, min_size=1, max_size=30),
    st.integers(24, 60),
    st.integers(1, 8),
    st.integers(1, 300),
    st.sampled_from([1.0, 1.7]),
    st.sampled_from([(), ((1, 0.006), (4, 0.009), (6, 0.02))]),
)
# Two that wait for an engine that falls idle start together.
@example(rows=[(0.0, 1, 1, 0)] * 3, blocks=24, most=2, budget=2, slowdown=1.0, reads=())
def test_times_and_preemptions_are_those_of_the_plain_engine(
    rows: list[tuple[float, int, int, int]],
    blocks: int,
    most: int,
    budget: int,
    slowdown: float,
    reads: Reads,
) -> None:
    profile = small_profile(
        kv_capacity_tokens=16 * blocks,
        max_num_seqs=most,
        max_batched_tokens=budget,
        decode_base_by_batch_s=reads,
    )
    # Spread out by a little, so that no arrival falls on the end of an iteration by rounding.
    arrivals = np.cumsum([gap + 1e-6 for gap, *_ in rows]) + 1e-7
    sequences = [
        Sequence(i, float(arrivals[i]), prompt, output, priority)
        for i, (_, prompt, output, priority) in enumerate(rows)
    ]
    PlainEngine(profile, slowdown, list(sequences)).run()
    trace = trace_of(
        *(
            request(s.number, s.arrival_s, s.prompt, s.output, priority=Priority(s.priority))
            for s in sequences
        )
    )
    cluster = Cluster([ReplicaSpec("one", profile, slowdown)], trace, prefix_cache=False)
    play(cluster)
    o = cluster.outcomes()
    assert np.all(o.ok)
    assert np.array_equal(o.preemptions, [s.preemptions for s in sequences])
    assert np.allclose(o.arrival_s + o.ttft_s, [s.first_s for s in sequences], rtol=1e-9)
    assert np.allclose(o.arrival_s + o.e2e_s, [s.end_s for s in sequences], rtol=1e-9)
