"""Who is in the fleet, whatever the sources say, and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings, RouterSettings
from steersman.serving.headers import NO_HINTS
from steersman.serving.membership import Membership
from steersman.serving.metrics import RouterMetrics
from steersman.serving.parts import Parts, build_parts
from steersman.serving.pool import Fleet
from steersman.serving.router import Prepared, Route
from steersman.traces.schema import Request
from steersman.traces.settings import parse_settings

PROFILE = load_profile("a100-llama-3.1-8b")


def backend(name: str, weight: float = 1.0) -> BackendSettings:
    return BackendSettings(url=f"http://{name}", id=name, models=("m",), weight=weight)


class Rig:
    """A fleet and its membership; loops are none of this test's business."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet(
            [backend(n) for n in names], [PROFILE] * len(names), HealthSettings(), block_tokens=16
        )
        self.members = Membership(
            self.fleet, lambda _: [], lambda _: PROFILE, RouterMetrics(), lambda: 0.0
        )
        self.members.expect(("x", "y"))

    async def tell(self, source: str, told: Sequence[BackendSettings]) -> None:
        self.members.tell(source, told)
        for replica in self.fleet.replicas:
            self.fleet.set_healthy(replica, healthy=True)
        await self.members.step(0.0)

    @property
    def taking(self) -> set[str]:
        state = self.fleet.state
        return {r.id for r in self.fleet.replicas if not state[r.index, L.DRAINING]}


NAMES = st.lists(st.sampled_from("abcdef"), unique=True)


@given(told=st.lists(st.tuples(st.sampled_from(["x", "y"]), NAMES, st.sampled_from([1.0, 2.0]))))
async def test_the_fleet_is_what_the_sources_last_said(
    told: list[tuple[str, list[str], float]],
) -> None:
    rig = Rig("a")
    latest: dict[str, list[str]] = {}
    for source, names, weight in told:
        latest[source] = names
        await rig.tell(source, [backend(name, weight) for name in names])
        assert rig.taking == {"a"}.union(*latest.values())
        assert {r.id for r in rig.fleet.replicas} == rig.taking, "nothing is there, so all have left"
        assert len({r.index for r in rig.fleet.replicas}) == len(rig.fleet.replicas)
        pool = rig.fleet.pools["m"]
        assert set(pool.ids) == rig.taking
        assert len(rig.fleet.match_tokens(pool, [1, 2])) == len(pool.ids)
    assert rig.fleet.settled is (len(latest) == 2)
    assert len(rig.fleet.state) <= 2 * 6 + 1, "rows are used again"


async def test_a_row_is_not_used_again_while_a_request_is_there() -> None:
    rig = Rig()
    await rig.tell("x", [backend("a")])
    old = rig.fleet.replicas[0]
    row = rig.fleet.state[old.index]
    L.on_dispatch(row, 100, 100, 50)
    rig.fleet.believe(old, (1, 2, 3), 0.0)
    await rig.tell("x", [backend("b")])
    assert [r.id for r in rig.fleet.replicas] == ["a", "b"]
    assert rig.taking == {"b"}
    L.on_abort(row, 100, 100, 50, 0, False)
    await rig.members.step(0.0)
    await rig.tell("x", [backend("b"), backend("c")])
    new = rig.fleet.replicas[1]
    assert (new.id, new.index) == ("c", old.index)
    assert not rig.fleet.state[new.index, L.INFLIGHT : L.MEAN_E2E_S].any()
    assert not rig.fleet.match_tokens(rig.fleet.pools["m"], (1, 2, 3)).any()


async def test_one_that_is_named_again_before_it_has_drained_goes_on() -> None:
    rig = Rig()
    await rig.tell("x", [backend("a")])
    old = rig.fleet.replicas[0]
    L.on_dispatch(rig.fleet.state[old.index], 100, 100, 50)
    await rig.tell("x", [])
    assert rig.taking == set()
    await rig.tell("x", [backend("a")])
    assert rig.fleet.replicas == (old,)
    assert rig.taking == {"a"}


async def test_a_replica_that_cannot_be_used_keeps_nobody_out() -> None:
    rig = Rig()
    broken = BackendSettings(url="http://k", id="k", models=("m",), api_key_env="STEERSMAN_NOT_SET")
    await rig.tell("x", [broken, backend("a")])
    assert rig.taking == {"a"}


def test_a_retry_is_decided_on_the_replicas_there_are_then() -> None:
    listed = [{"id": n, "url": f"http://{n}", "models": ["m"]} for n in "abc"]
    settings = parse_settings(
        {"backends": listed, "policy": {"name": "round-robin"}}, RouterSettings, source="test"
    )
    parts = build_parts(settings)
    fleet = parts.fleet
    prepared = parts.router.prepare(Request("r", 0.0, 10), fleet.pools["m"], NO_HINTS)
    first = chosen(parts, prepared)
    assert first.replica.id == "a"
    prepared.excluded[first.decision.choice] = True
    fleet.remove(fleet.replicas[1])
    fleet.add(backend("d"), PROFILE)
    second = chosen(parts, prepared)
    assert second.replica.id in {"c", "d"}
    prepared.excluded[second.decision.choice] = True
    third = chosen(parts, prepared)
    assert {first.replica.id, second.replica.id, third.replica.id} == {"a", "c", "d"}
    for replica in fleet.replicas:
        fleet.remove(replica)
    assert parts.router.choose(prepared) is None


def chosen(parts: Parts, prepared: Prepared) -> Route:
    route = parts.router.choose(prepared)
    assert route is not None
    return route
