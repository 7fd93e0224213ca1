"""Canaries at routers that run: backends, files and a shared server are real."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steersman.agents.policy import NO_CANDIDATE
from steersman.agents.served_evidence import waiting_evidence
from steersman.predictors.bundle import load_bundle, write_bundle
from steersman.serving.admin.listener import admin_listening
from steersman.serving.app import create_app
from steersman.serving.canary.canary import Canary
from steersman.serving.canary.state import Phase, read_state
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_log import read_outcomes
from steersman.traces.schema import Decision, Observation
from tests.parity.test_policy import GRAPH
from tests.serving.backends import Backend, backends, completion, whole
from tests.serving.harness import Routed, chat, eventually, reloader_of, routing, settings_for
from tests.support.valkey import valkey

FAST = {
    "interval_s": 0.05,
    "hold_s": 0.2,
    "least_requests": 20,
    "shares": (0.5, 1.0),
    "p99_rise": 100.0,  # of twenty outcomes on a busy machine
}
OTHER = {"policy": {"name": "random"}}
"""A challenger that is no different."""
GOOD, BAD = whole(completion()), whole(b"{}", status=500)


@dataclass
class Always:
    """A policy that knows only one replica."""

    index: int
    name: str = "always"
    version: str = ""

    def decide(self, observation: Observation) -> Decision:
        if not observation.mask[self.index]:
            return Decision(NO_CANDIDATE, self.name)
        return Decision(self.index, self.name)


class Broken(Always):
    """One whose code fails."""

    def decide(self, observation: Observation) -> Decision:
        raise RuntimeError("never worked")


def sections(tmp_path: Path, **canary: Any) -> dict[str, Any]:
    """A router on which nothing but the canary reacts to failures."""
    options = {"enabled": True, "challenger": OTHER, "state_file": str(tmp_path / "canary.json")}
    return {
        "canary": options | FAST | canary,
        "retries": {"attempts": 0},
        "health": {"interval_s": 0.1, "timeout_s": 30.0, "failures": 100, "silence_s": 0.0},
        "scrape": {"timeout_s": 30.0},
        "queue": {"enabled": False},
        "breaker": {"error_rate": 1.0},
        "outliers": {"factor": 0.0},
    }


@contextlib.asynccontextmanager
async def trying(
    fleet: list[Backend], tmp_path: Path, **canary: Any
) -> AsyncIterator[tuple[Routed, Canary]]:
    async with routing(settings_for(fleet, **sections(tmp_path, **canary))) as router:
        made = router.parts.canary
        assert made is not None
        yield router, made


def decide_with(canary: Canary, challenger: Any, champion: Any = None) -> None:
    """Put policies in the place of those that were made."""
    models = canary._challenger.models
    assert models is not None
    models._policies["m"] = challenger
    if champion is not None:
        canary._champion._policies["m"] = champion


async def ask(router: Routed, count: int, **headers: str) -> list[int]:
    """Status of each."""
    answers = await asyncio.gather(*(router.post(headers=headers or None) for _ in range(count)))
    return [status for status, _, _ in answers]


async def until(router: Routed, canary: Canary, phase: Phase) -> None:
    async def there() -> bool:
        if canary.state.phase is not phase:
            await ask(router, 10)
        return canary.state.phase is phase

    await eventually(there, within_s=60.0)


def seen(canary: Canary) -> int:
    """Outcomes of both arms in this stage."""
    return sum(canary.state.figures.outcomes(arm) for arm in ("champion", "challenger"))


def whats(canary: Canary) -> list[str]:
    return [one.what for one in canary.state.transitions]


async def test_a_policy_that_is_no_different_passes_and_keeps_all_traffic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "steersman.serving")
    async with backends(GOOD, GOOD) as fleet, trying(fleet, tmp_path) as (router, canary):
        await until(router, canary, Phase.PROMOTED)
        assert whats(canary) == ["started", "stage", "promoted"]
        assert canary.state.challenger.startswith("+random-")
        assert await router.metric('steersman_canary_transitions_total{what="promoted"}') == 1.0

        async def has_all() -> bool:
            return await router.metric("steersman_canary_share") == 1.0

        await eventually(has_all, within_s=60.0)
        assert await router.metric('steersman_canary_requests_total{arm="challenger",result="ok"}') >= 40
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "random"
        assert "promoted at 100 % of the traffic" in caplog.text

        # Its policy has become the router's own: no share is needed any more.
        taken = router.parts.settings.model_copy(
            update={"policy": router.parts.settings.canary.challenger.policy}
        )
        await router.parts.apply(taken)
        await eventually(lambda: canary.state.phase is Phase.IDLE, within_s=60.0)
        assert await router.metric("steersman_canary_share") == 0.0
        assert whats(canary)[-1] == "done"


async def test_an_outage_of_the_challenger_is_over_within_seconds(tmp_path: Path) -> None:
    slow = {"hold_s": 1000.0, "interval_s": 0.05}
    async with backends(GOOD, BAD) as fleet, trying(fleet, tmp_path, **slow) as (router, canary):
        await eventually(lambda: canary.state.running, within_s=60.0)
        decide_with(canary, Always(1), Always(0))
        failed = 0
        while canary.share > 0.0:
            failed += (await ask(router, 1)).count(500)
        assert failed == 10, "as many as the rule needs, and not one more"
        assert set(await ask(router, 30)) == {200}
        await eventually(lambda: canary.state.phase is Phase.ROLLED_BACK, within_s=60.0)
        assert "outage: 10 of its last 10 requests failed" in canary.state.transitions[-1].reason
        assert await router.metric('steersman_canary_transitions_total{what="rolled_back"}') == 1.0
        assert set(await ask(router, 30)) == {200}
        await asyncio.sleep(0.2)
        assert not canary.state.running, "what was tried is not tried again by itself"


async def test_code_that_fails_costs_no_request(tmp_path: Path) -> None:
    slow = {"hold_s": 1000.0}
    async with backends(GOOD) as fleet, trying(fleet, tmp_path, **slow) as (router, canary):
        await eventually(lambda: canary.state.running, within_s=60.0)
        decide_with(canary, Broken(0))
        assert set(await ask(router, 60)) == {200}
        await eventually(lambda: canary.state.phase is Phase.ROLLED_BACK, within_s=60.0)
        assert await router.metric("steersman_canary_faults_total") >= 10.0


async def test_a_session_stays_with_its_arm_and_the_log_tells_which(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = sections(tmp_path, hold_s=1000.0) | {"outcome_log": {"directory": str(log)}}
    async with backends(GOOD) as fleet, routing(settings_for(fleet, **options)) as router:
        canary = router.parts.canary
        assert canary is not None
        await eventually(lambda: canary.state.running, within_s=60.0)
        for session in range(12):
            await ask(router, 3, **{"x-session-id": f"s{session}"})
    arms: dict[str, set[str]] = {}
    policies: dict[str, set[str]] = {}
    for record in read_outcomes(log):
        arms.setdefault(str(record.session_id), set()).add(record.arm)
        policies.setdefault(record.arm, set()).add(record.policy)
    assert len(arms) == 12
    assert all(len(kinds) == 1 for kinds in arms.values())
    assert policies == {"champion": {"round-robin"}, "challenger": {"random"}}


async def test_it_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    slow = {"hold_s": 1000.0}
    async with backends(GOOD) as fleet:
        async with trying(fleet, tmp_path, **slow) as (router, canary):
            await eventually(lambda: canary.state.running, within_s=60.0)
            await ask(router, 30)
            await eventually(lambda: canary.state.figures.outcomes("challenger") >= 5, within_s=60.0)
            before = canary.state.model_copy(deep=True)
        async with trying(fleet, tmp_path, **slow) as (router, canary):
            await eventually(lambda: canary.share == 0.5, within_s=60.0)
            now = canary.state
            assert now.started_unix_s == before.started_unix_s
            assert now.figures.outcomes("challenger") >= before.figures.outcomes("challenger")
            assert whats(canary) == ["started"]
            await router.parts.canary.step(router.parts.clock())  # type: ignore[union-attr]
        (tmp_path / "canary.json").write_bytes(b"{damaged")
        async with trying(fleet, tmp_path, **slow) as (router, canary):
            await eventually(lambda: canary.state.running, within_s=60.0)
            assert set(await ask(router, 5)) == {200}
            assert (tmp_path / "canary.json.bad").is_file()


@contextlib.asynccontextmanager
async def two_routers(
    directory: Path, shared: dict[str, Any]
) -> AsyncIterator[tuple[list[Routed], list[Canary]]]:
    """With one canary, whose first stage has begun at both and lasts."""
    async with backends(GOOD, BAD) as fleet, contextlib.AsyncExitStack() as stack:
        routers: list[Routed] = []
        canaries: list[Canary] = []
        for name in ("a", "b"):
            options = sections(directory / name, hold_s=1000.0) | {"shared": shared}
            routers.append(await stack.enter_async_context(routing(settings_for(fleet, **options))))
            made = routers[-1].parts.canary
            assert made is not None
            canaries.append(made)
        await eventually(lambda: all(c.share == 0.5 for c in canaries), within_s=60.0)
        yield routers, canaries


async def test_routers_share_it_and_go_on_without_the_server(tmp_path: Path) -> None:
    with valkey() as server:
        shared = {"url": server.url, "timeout_s": 5.0, "retry_s": 0.05}
        async with two_routers(tmp_path, shared) as (routers, canaries):
            for canary in canaries:
                decide_with(canary, Always(0), Always(0))
            assert canaries[0].state.started_unix_s == canaries[1].state.started_unix_s
            for router in routers:
                await ask(router, 20)
            await eventually(lambda: [seen(c) for c in canaries] == [40, 40], within_s=60.0)

            server.kill()
            await eventually(lambda: all(c._alone for c in canaries), within_s=60.0)
            for router in routers:
                assert set(await ask(router, 10)) == {200}
            assert [c.share for c in canaries] == [0.5, 0.5], "as last known"
            decide_with(canaries[0], Always(1))
            while canaries[0].share > 0.0:
                await ask(routers[0], 5)
            assert canaries[1].share == 0.5, "it could not be told"
            server.start()
            await eventually(lambda: not any(c._alone for c in canaries), within_s=60.0)
            # The server has lost all it knew: what routers know is there again, the outage first of all.
            await eventually(
                lambda: {c.state.phase for c in canaries} == {Phase.ROLLED_BACK}, within_s=60.0
            )
            assert [whats(c) for c in canaries] == [["started", "rolled_back"]] * 2
            for router in routers:
                assert set(await ask(router, 10)) == {200}


async def test_a_rollback_of_one_router_is_everybody_s(tmp_path: Path) -> None:
    with valkey() as server:
        shared = {"url": server.url, "timeout_s": 5.0}
        async with two_routers(tmp_path, shared) as (routers, canaries):
            decide_with(canaries[0], Always(1), Always(0))
            decide_with(canaries[1], Always(0), Always(0))
            while canaries[0].share > 0.0:
                await ask(routers[0], 5)
            await eventually(lambda: canaries[1].share == 0.0, within_s=60.0)
            assert canaries[1].state.phase is Phase.ROLLED_BACK
            assert read_state((tmp_path / "b" / "canary.json").read_bytes()).phase is Phase.ROLLED_BACK


async def test_a_bundle_that_appears_is_tried_and_its_evidence_left(tmp_path: Path) -> None:
    served = tmp_path / "served"
    challenger = {"bundle": str(served / "challenger"), "policy": None}

    def write(version: str, graph: bytes = GRAPH) -> None:
        write_bundle(
            served / "challenger",
            {"policy.onnx": graph},
            version=version,
            code_version="0",
            created=datetime(2026, 1, 1, tzinfo=UTC),
        )

    async with backends(GOOD) as fleet:
        options = sections(tmp_path, challenger=challenger) | {"policy": {"name": "learned"}}
        async with routing(settings_for(fleet, **options)) as router:
            canary = router.parts.canary
            assert canary is not None
            write("b2", b"no graph")
            await eventually(
                lambda: router.parts.canary._challenger._seen is not None,  # type: ignore[union-attr]
                within_s=60.0,
            )
            await asyncio.sleep(0.2)
            assert canary.state.phase is Phase.IDLE
            assert await router.metric("steersman_canary_refused_total") == 1.0
            write("b3")
            await until(router, canary, Phase.PROMOTED)
            await eventually(lambda: canary.state.evidence_left, within_s=60.0)
            ((_, evidence),) = waiting_evidence(served)
            assert (evidence.challenger, evidence.verdict) == ("b3", "no_worse")
            assert evidence.champion == router.parts.models.version != "b3"

            # The registry's worker makes it champion: the canary has done its work.
            champion = load_bundle(served / "challenger")
            write_bundle(
                served / "champion",
                champion.contents,
                version="b3",
                code_version="0",
                created=champion.manifest.created,
            )
            settings = router.parts.settings
            bundle = settings.bundle.model_copy(update={"directory": str(served / "champion")})
            await router.parts.apply(settings.model_copy(update={"bundle": bundle}))
            await eventually(lambda: canary.state.phase is Phase.IDLE, within_s=60.0)
            assert router.parts.models.version == "b3"


async def test_operators_see_and_move_it(tmp_path: Path) -> None:
    slow = {"hold_s": 1000.0, "start": "manual"}
    async with backends(GOOD) as fleet, trying(fleet, tmp_path, **slow) as (router, canary):
        admin = router.parts.settings.admin.model_copy(update={"port": 0})
        router.parts.settings = router.parts.settings.model_copy(update={"admin": admin})
        async with admin_listening(router.parts, reloader_of(router.parts)) as port:
            url = f"http://127.0.0.1:{port}/canary"

            async def command(name: str, body: Any = None) -> tuple[int, Any]:
                async with router.client.post(f"{url}/{name}", json=body) as answer:
                    return answer.status, await answer.json()

            async with router.client.get(url) as answer:
                assert (await answer.json())["phase"] == "idle"
            assert (await command("abort"))[0] == 409
            assert (await command("fly"))[0] == 404
            assert (await command("start", ["me"]))[0] == 400
            assert (await command("start", {"by": "me"}))[0] == 200
            await eventually(lambda: canary.state.running, within_s=60.0)
            assert canary.state.transitions[-1].reason == "asked for by me"
            status, told = await command("promote", {"by": "me", "reason": "in a hurry"})
            assert (status, told["phase"], told["share"]) == (200, "promoted", 1.0)
            status, told = await command("abort", {"by": "me", "reason": "not so fast"})
            assert (status, told["phase"], told["share"]) == (200, "aborted", 0.0)
            assert told["history"][-1]["reason"] == "by me: not so fast"
            assert canary.share == 0.0


async def test_a_misspelt_policy_is_found_at_the_start(tmp_path: Path) -> None:
    async with backends(GOOD) as fleet:
        settings = settings_for(fleet, **sections(tmp_path, challenger={"policy": {"name": "p2d"}}))
        with pytest.raises(ConfigError, match="p2d"):
            create_app(settings)


async def test_without_a_canary_there_is_no_page_and_no_arm(tmp_path: Path) -> None:
    async with backends(GOOD) as fleet, routing(settings_for(fleet)) as router:
        assert router.parts.canary is None
        assert (await router.post(chat()))[0] == 200
        assert await router.metric("steersman_canary_share") == 0.0
