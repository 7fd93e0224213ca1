"""What operators tell one worker, all do: here two routers on one event loop, each in its seat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from steersman.serving.config import RouterSettings
from steersman.serving.reload import Reloader
from steersman.serving.workers.accepted import Accepted
from steersman.serving.workers.orders import Orders
from steersman.serving.workers.team import Team, Told
from steersman.serving.workers.wires import Colleagues, Message, Wires
from steersman.traces.errors import ConfigError
from tests.serving.backends import Backend, backends, completion, whole
from tests.serving.harness import Routed, eventually, routing, settings_for

GOOD = whole(completion())


class Crew:
    """Workers, each with its router."""

    def __init__(self) -> None:
        self.wires, self.orders, self.accepted = Wires(3), Orders(3), Accepted(3)
        self.supervisor_was_told = 0
        self.teams: list[Team] = []

    def _tell(self) -> None:
        self.supervisor_was_told += 1

    async def join(self, router: Routed, read: Callable[[], RouterSettings] | None = None) -> Team:
        parts = router.parts
        reloader = Reloader(parts, read or (lambda: parts.settings))
        team = Team(self.wires, self.orders, self.accepted, len(self.teams), parts, reloader, self._tell)
        self.teams.append(team)
        await team.step(0.0)
        return team


@contextlib.asynccontextmanager
async def crew(
    read: Callable[[], RouterSettings] | None = None, **sections: Any
) -> AsyncIterator[tuple[Crew, list[Routed], list[Backend]]]:
    made = Crew()
    async with backends(GOOD, GOOD) as fleet:
        settings = settings_for(fleet, **sections)
        async with routing(settings) as one, routing(settings) as other:
            for router in (one, other):
                await made.join(router, read)
            try:
                yield made, [one, other], fleet
            finally:
                for team in made.teams:
                    team.close()
                made.wires.close()


def draining(router: Routed) -> list[str]:
    fleet = router.parts.fleet
    return [replica.id for replica in fleet.replicas if fleet.describe(replica, 0.0).draining]


async def test_all_drain_what_one_was_told_to() -> None:
    async with crew() as (made, routers, _):
        assert await made.teams[0].hold("b0", hold=True) == Told(2, 2)
        assert [draining(router) for router in routers] == [["b0"], ["b0"]]
        assert await made.teams[1].hold("b1", hold=True) == Told(2, 2)
        assert await made.teams[1].hold("b0", hold=False) == Told(2, 2)
        assert [draining(router) for router in routers] == [["b1"], ["b1"]]
        assert await made.teams[0].hold("b9", hold=True) is None


async def test_one_that_comes_later_or_heard_nothing_follows_too() -> None:
    async with crew() as (made, routers, fleet):
        made.teams[1].close()
        assert await made.teams[0].hold("b0", hold=True) == Told(1, 1)
        assert draining(routers[1]) == []
        async with routing(settings_for(fleet)) as late:
            await made.join(late)
            assert draining(late) == ["b0"]
            await made.teams[1].step(0.0)
            assert draining(routers[1]) == ["b0"]
            made.orders.departed(0)
            assert await made.teams[2].hold("b0", hold=False) == Told(3, 3)
            assert [draining(router) for router in (*routers, late)] == [[], [], []]
            made.teams[2].close()


async def test_one_that_answers_nothing_is_not_counted_and_not_waited_for_long() -> None:
    async with crew() as (made, routers, _):
        made.wires.taken[2] = 1  # it hangs
        assert await made.teams[0].hold("b1", hold=True) == Told(2, 3)
        assert [draining(router) for router in routers] == [["b1"], ["b1"]]


async def test_all_read_the_configuration_and_the_supervisor_is_told() -> None:
    wanted: list[Any] = [ConfigError("polcy: unknown key")] * 2

    def read() -> RouterSettings:
        given = wanted.pop(0)
        if isinstance(given, ConfigError):
            raise given
        assert isinstance(given, RouterSettings)
        return given

    async with crew(read) as (made, routers, fleet):
        result, told = await made.teams[0].reload()
        assert (result["ok"], told) == (False, Told(0, 2))
        assert "polcy" in result["problem"]
        assert made.supervisor_was_told == 0
        assert made.accepted.newest() is None
        wanted += [settings_for(fleet, aliases={"x": "m"})] * 2
        result, told = await made.teams[1].reload()
        assert (result["ok"], result["changed"], told) == (True, ("aliases",), Told(2, 2))
        assert made.supervisor_was_told == 1
        assert made.accepted.newest() == settings_for(fleet, aliases={"x": "m"})
        assert [dict(router.parts.fleet.aliases) for router in routers] == [{"x": "m"}] * 2
        wanted += [settings_for(fleet), ConfigError("too late")]
        result, told = await made.teams[0].reload()
        assert (result["ok"], result["problem"], told) == (False, "too late", Told(1, 2))


async def test_a_question_that_fails_elsewhere_has_no_answer() -> None:
    wires = Wires(2)

    async def fine() -> Message:
        return {"fine": True}

    async def fails() -> Message:
        raise ValueError("a fault")

    ends = [Colleagues(wires, 0, {"how": fine}), Colleagues(wires, 1, {"how": fails})]
    for _ in range(5):  # of a former worker in that seat: not for this one
        wires.outboxes[1].send(b'{"ask":"how","number":0,"seat":0}')
    for end in ends:
        end.listen()
    asking = [ends[0].ask("how", 0.2) for _ in range(3)]
    assert await asyncio.gather(*asking) == [[{"fine": True}, None]] * 3
    for end in ends:
        end.close()
    assert not wires.taken.any()
    wires.close()


async def test_a_mailbox_that_nobody_empties_stops_nobody() -> None:
    wires = Wires(2)

    async def fine() -> Message:
        return {}

    end = Colleagues(wires, 0, {"how": fine})
    end.listen()
    wires.taken[1] = 1
    for _ in range(1000):
        assert await end.ask("how", 0.0) == [{}, None]
    await eventually(lambda: True)
    end.close()
    wires.close()
