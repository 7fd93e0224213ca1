"""Affinity at a router that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from steersman.agents.affinity import AFFINITY
from steersman.agents.explain import explain_record
from steersman.traces.outcome_log import read_outcomes
from tests.serving.backends import backends, completion, whole
from tests.serving.engine_answers import engine
from tests.serving.harness import Routed, chat, rig, routing, settings_for
from tests.support.valkey import valkey

GOOD = whole(completion())
BY_SESSION = {"keys": ["session"], "most_share": 99.0}


async def asked(router: Routed, session: str = "", body: Any = None, **more: str) -> tuple[str, str]:
    """Replica and policy."""
    headers = ({"x-session-id": session} if session else {}) | more
    status, _, told = await router.post(body, headers=headers)
    assert status == 200
    return told["x-steersman-replica"], told["x-steersman-policy"]


async def test_a_session_stays_and_others_take_the_policy() -> None:
    async with rig(GOOD, GOOD, GOOD, affinity=BY_SESSION) as (router, _):
        home, policy = await asked(router, "s")
        assert policy == "round-robin"
        assert [await asked(router, "s") for _ in range(3)] == [(home, "affinity")] * 3
        assert len({(await asked(router))[0] for _ in range(3)}) == 3
        assert await router.metric('steersman_affinity_total{outcome="stayed"}') == 3.0
        assert await router.metric("steersman_affinity_groups") == 1.0


async def test_it_is_off_unless_configured() -> None:
    async with rig(GOOD, GOOD) as (router, _):
        assert len({(await asked(router, "s"))[0] for _ in range(2)}) == 2


async def test_users_prefixes_and_tenants_are_groups_too() -> None:
    affinity = {"keys": ["user", "prefix", "tenant"], "most_share": 99.0, "prefix_blocks": 1}
    long = chat("once upon a time " * 200)
    async with rig(GOOD, GOOD, GOOD, affinity=affinity) as (router, _):
        for body, headers in (
            (chat(user="ann"), {}),
            (chat(safety_identifier="bob", user="x"), {}),
            (long, {}),
            (chat(), {"x-steersman-tenant": "t"}),
        ):
            home, _ = await asked(router, body=body, **headers)
            assert [await asked(router, body=body, **headers) for _ in range(2)] == [
                (home, "affinity")
            ] * 2


async def test_a_home_that_is_gone_or_drains_is_left() -> None:
    async with rig(GOOD, GOOD, affinity=BY_SESSION) as (router, fleet):
        home, _ = await asked(router, "s")
        router.parts.membership.hold(home, hold=True)
        moved, policy = await asked(router, "s")
        assert (moved != home, policy) == (True, "round-robin")
        router.parts.membership.hold(home, hold=False)
        assert await asked(router, "s") == (moved, "affinity")
        await next(b for b in fleet if b.name == moved).stop()
        assert (await asked(router, "s"))[0] == home, "after a failed attempt"
        assert await asked(router, "s") == (home, "affinity")
        assert await router.metric('steersman_affinity_total{outcome="moved"}') == 2.0


async def test_two_routers_keep_a_session_on_one_replica_and_survive_their_server() -> None:
    with valkey() as server:
        sections = {
            "affinity": BY_SESSION,
            "shared": {"url": server.url, "timeout_s": 1.0, "retry_s": 60.0},
        }
        async with (
            rig(GOOD, GOOD, GOOD, **sections) as (one, fleet),
            routing(settings_for(fleet, **sections)) as other,
        ):
            await asked(other)  # their turns differ
            home, _ = await asked(one, "s")
            await one.parts.shared.settled()  # type: ignore[union-attr]
            assert await asked(other, "s") == (home, "affinity")
            server.kill()
            for router in (one, other):
                assert await asked(router, "s") == (home, "affinity")
                assert (await asked(router, "new"))[1] == "round-robin"
                assert await router.metric("steersman_shared_up") == 0.0


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_response_is_followed_up_where_it_is(streaming: bool) -> None:
    async with (
        backends(engine, engine, engine) as fleet,
        routing(settings_for(fleet)) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        if streaming:
            stream = await client.responses.create(model="m", input="a", stream=True)
            told = [event async for event in stream]
            response_id = told[-1].response.id  # type: ignore[union-attr]
        else:
            response_id = (await client.responses.create(model="m", input="a")).id
        holder = next(b for b in fleet if any(r.path == "/v1/responses" for r in b.received))
        for _ in range(3):
            await client.responses.create(model="m", input="b", previous_response_id=response_id)
        assert len(holder.received) == 4
        await client.responses.create(model="m", input="b", previous_response_id="resp_other")
        await client.responses.create(model="m", input="b")
        assert len(holder.received) <= 5
        assert await router.metric('steersman_affinity_total{outcome="pinned"}') == 3.0


async def test_another_tenant_s_response_is_not_found() -> None:
    async with backends(engine, engine) as fleet, routing(settings_for(fleet)) as router:

        async def ask(tenant: str, **more: Any) -> tuple[str, str, str]:
            status, body, told = await router.post(
                {"model": "m", "input": "a"} | more,
                path="/v1/responses",
                headers={"x-steersman-tenant": tenant},
            )
            assert status == 200
            return (
                told["x-steersman-replica"],
                told["x-steersman-policy"],
                orjson.loads(body)["id"],
            )

        holder, _, response_id = await ask("ann")
        assert (await ask("ann", previous_response_id=response_id))[:2] == (holder, "affinity")
        assert (await ask("bob", previous_response_id=response_id))[1] == "round-robin"


async def test_why_a_request_stayed_is_explained(tmp_path: Path) -> None:
    log = {"directory": str(tmp_path)}
    async with rig(GOOD, GOOD, affinity=BY_SESSION, outcome_log=log) as (router, _):
        await asked(router, "s")
        await asked(router, "s")
        assert router.parts.log is not None
        router.parts.log.flush()
        *_, record = read_outcomes(tmp_path)
    assert (record.policy, record.propensity) == (AFFINITY, 1.0)
    assert any("at home" in sentence for sentence in explain_record(record).reasons)
