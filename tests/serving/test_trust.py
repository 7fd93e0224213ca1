"""Who is avoided for what; distrust never empties a pool."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings
from steersman.serving.pool import Fleet
from steersman.serving.trust import Trust
from steersman.serving.trust_settings import BreakerSettings, OutlierSettings, SlowStartSettings
from tests.serving.backends import completion, events, stream, whole
from tests.serving.harness import chat, eventually, rig

PROFILE = load_profile("a100-llama-3.1-8b")
NOW_S = 1000.0


def make_fleet(count: int, *, share: float = 0.5, duration_s: float = 20.0) -> Fleet:
    backends = [BackendSettings(url=f"http://{i}", id=f"r{i}", models=("m",)) for i in range(count)]
    trust = Trust(
        OutlierSettings(max_ejected_share=share),
        SlowStartSettings(duration_s=duration_s, initial_share=0.1),
    )
    breaker = BreakerSettings(min_requests=1, open_s=60.0)
    return Fleet(
        backends, [PROFILE] * count, HealthSettings(), block_tokens=16, breaker=breaker, trust=trust
    )


def avoided(fleet: Fleet, now_s: float = NOW_S) -> list[int]:
    pool = fleet.pools["m"]
    mask = fleet.avoided(pool, np.zeros(len(pool.ids), dtype=np.bool_), now_s)
    return np.flatnonzero(mask).tolist()


def eject(fleet: Fleet, index: int) -> None:
    replica = fleet.replicas[index]
    replica.standing.ejected_until_s = NOW_S + 30.0
    fleet.trust.doubt(replica)


def open_circuit(fleet: Fleet, index: int) -> None:
    replica = fleet.replicas[index]
    assert replica.standing.breaker.failed(NOW_S)
    fleet.trust.doubt(replica)


def test_the_better_of_two_evils_is_used() -> None:
    fleet = make_fleet(3)
    eject(fleet, 0)
    open_circuit(fleet, 1)
    assert avoided(fleet) == [0, 1]
    fleet.set_healthy(fleet.replicas[2], healthy=False)
    assert avoided(fleet) == [1], "late is better than wrong"
    fleet.set_healthy(fleet.replicas[0], healthy=False)
    assert avoided(fleet) == []


def test_trust_comes_back_with_time() -> None:
    fleet = make_fleet(2)
    eject(fleet, 0)
    assert avoided(fleet, NOW_S + 29.0) == [0]
    assert avoided(fleet, NOW_S + 31.0) == []


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(2, 0.5, 1), (3, 0.5, 1), (8, 0.5, 4), (8, 0.1, 1), (8, 0.0, 0)]
)
def test_only_a_share_of_a_pool_may_be_out(count: int, share: float, expected: int) -> None:
    fleet = make_fleet(count, share=share)
    for i, replica in enumerate(fleet.replicas):
        if fleet.trust.may_eject(replica, fleet, NOW_S):
            eject(fleet, i)
    assert len(avoided(fleet)) == expected


def test_a_replica_that_comes_gets_its_share_little_by_little() -> None:
    fleet = make_fleet(3)
    fleet.state[:, L.INFLIGHT] = [20.0, 40.0, 0.0]
    newcomer = fleet.replicas[2]
    newcomer.standing.warm_up(NOW_S)
    fleet.trust.doubt(newcomer)
    most = []
    for elapsed_s in (0.0, 5.0, 10.0, 19.0):
        row = fleet.state[newcomer.index]
        row[L.INFLIGHT] = 0.0
        while 2 not in avoided(fleet, NOW_S + elapsed_s):
            row[L.INFLIGHT] += 1.0
        most.append(int(row[L.INFLIGHT]))
    assert most == [3, 9, 16, 28]
    fleet.state[newcomer.index, L.INFLIGHT] = 200.0
    assert avoided(fleet, NOW_S + 20.0) == []


def test_an_idle_pool_gives_it_one_at_a_time_and_a_cold_pool_all() -> None:
    fleet = make_fleet(2)
    for replica in fleet.replicas[1:]:
        replica.standing.warm_up(NOW_S)
        fleet.trust.doubt(replica)
    assert avoided(fleet) == []
    fleet.state[1, L.INFLIGHT] = 1.0
    assert avoided(fleet) == [1]
    fleet.replicas[0].standing.warm_up(NOW_S)
    fleet.trust.doubt(fleet.replicas[0])
    assert avoided(fleet) == [], "nobody is warm"


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 300)),
        min_size=1,
        max_size=6,
    )
)
def test_distrust_never_empties_a_pool(ways: list[tuple[bool, bool, bool, bool, int]]) -> None:
    fleet = make_fleet(len(ways))
    for i, (silent, broken, late, new, inflight) in enumerate(ways):
        replica = fleet.replicas[i]
        fleet.state[i, L.INFLIGHT] = inflight
        if silent:
            fleet.trust.suspects.add(replica)
        if broken:
            open_circuit(fleet, i)
        if late:
            eject(fleet, i)
        if new:
            replica.standing.warm_up(NOW_S)
            fleet.trust.doubt(replica)
    out = avoided(fleet)
    assert len(out) < len(ways)
    beyond_reproach = [i for i, way in enumerate(ways) if not any(way[:4])]
    assert not set(out) & set(beyond_reproach)


async def test_a_replica_that_is_back_starts_slowly() -> None:
    text = b"".join(events(2))
    slow = stream([text], delay_s=0.3)
    quick = {"health": {"interval_s": 0.05, "failures": 1, "timeout_s": 0.5}}
    async with rig(slow, slow, policy={"name": "round-robin"}, **quick) as (router, fleet):
        assert await router.metric('steersman_replica_ramp{replica="b1"}') == 1.0, "it was there"
        fleet[1].health_status = 503
        await eventually(lambda: not router.parts.fleet.replicas[1].health.healthy)
        fleet[1].health_status = 200
        await eventually(lambda: router.parts.fleet.replicas[1].health.healthy)
        answers = await asyncio.gather(*(router.post(chat(stream=True)) for _ in range(12)))
        who = [headers["x-steersman-replica"] for _, _, headers in answers]
        assert who.count("b1") == 1, "one at a time, while its peer has few"
        assert (await router.get("/health"))[1].count(b'"ramp":1.0') == 1


async def test_who_was_there_at_the_start_is_not_new() -> None:
    good = whole(completion())
    async with rig(good, good) as (router, _):
        now_s = router.parts.clock()
        assert {router.parts.fleet.trust.ramp(r, now_s) for r in router.parts.fleet.replicas} == {1.0}
