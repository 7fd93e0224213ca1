"""The queue in front of simulated clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steersman.agents.policies import make_policy
from steersman.agents.queueing.settings import QueueSettings
from steersman.agents.queueing.simulated import QueuedCluster, play_queued
from steersman.env.cluster import Cluster
from steersman.env.outcomes import STATUSES, OutcomeTable
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Priority, Status
from steersman.traces.trace import Trace
from tests.env.worlds import check_memory, request, small_profile, specs, trace_of

PROFILE = replace(small_profile(kv_capacity_tokens=32_000, max_num_seqs=8), max_batched_tokens=2048)
NOBODY_IS_FULL = QueueSettings(
    enabled=True, waiting=1e9, kv_usage=1.0, batch_use=1.0, tpot_share=(1e9,) * 4, ttft_share=(1e9,) * 4
)
FULL_IS_FULL = QueueSettings(enabled=True, tpot_share=(1e9,) * 4, ttft_share=(1e9,) * 4)


def crowd(count: int = 160, interval_s: float = 0.02) -> Trace:
    """More than two small replicas can take at a time, of all classes."""
    return trace_of(
        *(
            request(i, interval_s * i, 300 + 37 * (i % 11), 40 + 13 * (i % 7), priority=Priority(i % 4))
            for i in range(count)
        )
    )


def play(
    settings: QueueSettings, trace: Trace, *, clusters: int = 1
) -> tuple[list[OutcomeTable], list[QueuedCluster]]:
    made = [Cluster(specs(PROFILE, PROFILE), trace, seed=i) for i in range(clusters)]
    batch = ClusterBatch(made)
    policies = [make_policy("marginal-cost", seed=i) for i in range(clusters)]
    places = play_queued(batch, policies, [settings] * clusters)
    for i in range(clusters):
        batch.finish(i)
        check_memory(made[i].memory)
    return [cluster.outcomes() for cluster in made], places


def test_without_saturation_nothing_changes() -> None:
    trace = crowd(40, 0.3)
    alone = Cluster(specs(PROFILE, PROFILE), trace, seed=0)
    policy = make_policy("marginal-cost", seed=0)
    while alone.next_request() is not None:
        alone.dispatch(policy.decide(alone.observe()).choice)
    alone.finish()
    (queued,), _ = play(NOBODY_IS_FULL, trace)
    np.testing.assert_array_equal(queued.replica, alone.outcomes().replica)
    np.testing.assert_array_equal(queued.ttft_s, alone.outcomes().ttft_s)


def test_under_saturation_the_higher_class_goes_first_and_all_are_served() -> None:
    (outcomes,), (place,) = play(FULL_IS_FULL, crowd())
    assert outcomes.ok.all()
    assert len(place.queue) == 0
    ttft_s = [np.quantile(outcomes.ttft_s[outcomes.priority == p], 0.9) for p in range(4)]
    assert ttft_s[0] < ttft_s[1] < ttft_s[2] < ttft_s[3]


def test_engines_queue_little_while_the_router_holds() -> None:
    cluster = Cluster(specs(PROFILE, PROFILE), crowd(), seed=0)
    batch = ClusterBatch([cluster])
    waiting = []
    play_queued(
        batch,
        [make_policy("p2c", seed=0)],
        [FULL_IS_FULL],
        on_decided=lambda _: waiting.append(int(cluster.memory.replicas["waiting"].max())),
    )
    assert max(waiting) <= 4


def test_what_does_not_fit_the_queue_is_refused_from_the_lowest_class_up() -> None:
    (outcomes,), _ = play(FULL_IS_FULL.model_copy(update={"max_requests": 8}), crowd())
    refused = outcomes.status == STATUSES.index(Status.REJECTED)
    assert (refused | outcomes.ok).all()
    shares = [refused[outcomes.priority == p].mean() for p in range(4)]
    assert shares[3] >= shares[2] > shares[0]
    assert np.isfinite(outcomes.arrival_s).all()


def test_clusters_in_one_batch_do_not_disturb_each_other() -> None:
    together, _ = play(FULL_IS_FULL, crowd(), clusters=3)
    (alone,), _ = play(FULL_IS_FULL, crowd())
    np.testing.assert_array_equal(together[0].ttft_s, alone.ttft_s)
    np.testing.assert_array_equal(together[0].replica, alone.replica)
