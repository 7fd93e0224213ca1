"""The operators' listener, beside a router that runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from steersman.serving.admin.app import create_admin_app
from steersman.serving.admin.listener import admin_listening
from steersman.serving.app import create_app
from steersman.serving.config import RouterSettings
from steersman.serving.reload import Reloader
from steersman.traces.errors import ConfigError
from tests.serving.backends import Backend, completion, whole
from tests.serving.harness import Routed, reloader_of, rig, settings_for

ADMIN = {"port": 0}


@contextlib.asynccontextmanager
async def administered(
    count: int = 2, read: Callable[[], RouterSettings] | None = None, **sections: Any
) -> AsyncIterator[tuple[Routed, Routed, list[Backend]]]:
    """A router, its operators' address, its backends; `read` reads its configuration again."""
    answers = [whole(completion())] * count
    async with (
        rig(*answers, **{"admin": ADMIN} | sections) as (router, fleet),
        admin_listening(
            router.parts, Reloader(router.parts, read) if read else reloader_of(router.parts)
        ) as port,
    ):
        yield router, Routed(f"http://127.0.0.1:{port}", router.parts, router.client), fleet


async def ask(admin: Routed, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with admin.client.request(method, admin.url + path, **more) as answer:
        return answer.status, orjson.loads(await answer.read())


async def test_with_an_address_for_operators_the_public_one_tells_no_names() -> None:
    async with administered() as (router, admin, _):
        status, page = await router.get("/health")
        assert (status, orjson.loads(page)) == (200, {"status": "ok"})
        assert orjson.loads((await router.get("/ready"))[1]) == {"status": "ok"}
        assert (await router.get("/live"))[0] == 200
        assert (await router.get("/metrics"))[0] == 404
        assert (await router.post())[0] == 200
        assert b"steersman_requests_total" in (await admin.get("/metrics"))[1]
        _, health = await ask(admin, "GET", "/health")
        assert set(health["replicas"]) == {"b0", "b1"}
        assert (await ask(admin, "POST", "/v1/chat/completions"))[0] == 404


async def test_without_one_everything_is_on_the_public_port() -> None:
    async with (
        rig(whole(completion())) as (router, _),
        admin_listening(router.parts, reloader_of(router.parts)) as port,
    ):
        assert port is None
        assert b"b0" in (await router.get("/health"))[1]
        assert (await router.get("/metrics"))[0] == 200
        assert (await router.get("/config"))[0] == 404


async def test_a_replica_is_drained_and_resumed() -> None:
    async with administered() as (router, admin, fleet):
        assert await ask(admin, "POST", "/replicas/b0/drain") == (
            200,
            {"replica": "b0", "draining": True},
        )
        for _ in range(4):
            assert (await router.post())[2]["x-steersman-replica"] == "b1"
        _, told = await ask(admin, "GET", "/replicas")
        assert [each["state"]["draining"] for each in told["replicas"]] == [True, False]
        assert told["replicas"][0]["url"] == fleet[0].url
        await ask(admin, "POST", "/replicas/b0/resume")
        assert {(await router.post())[2]["x-steersman-replica"] for _ in range(4)} == {"b0", "b1"}
        status, told = await ask(admin, "POST", "/replicas/b9/drain")
        assert (status, told["error"]["code"]) == (404, "not_found")
        assert "b0, b1" in told["error"]["message"]
        assert (await ask(admin, "GET", "/replicas/b0/drain"))[0] == 405


async def test_the_configuration_is_read_again() -> None:
    wanted: list[RouterSettings] = []

    def read() -> RouterSettings:
        if not wanted:
            raise ConfigError("polcy: unknown key; remove it")
        return wanted.pop()

    async with administered(read=read) as (router, admin, fleet):
        status, told = await ask(admin, "POST", "/reload")
        assert (status, told["ok"]) == (422, False)
        assert "polcy" in told["problem"]
        wanted.append(settings_for(fleet[1:], admin=ADMIN, host="::1"))
        assert await ask(admin, "POST", "/reload") == (
            200,
            {"ok": True, "changed": ["backends"], "needs_restart": ["host"], "problem": ""},
        )
        assert {(await router.post())[2]["x-steersman-replica"] for _ in range(3)} == {"b1"}


async def test_a_decision_is_explained(tmp_path: Path) -> None:
    log = {"directory": str(tmp_path / "log")}
    async with administered(outcome_log=log, policy={"name": "marginal-cost"}) as (router, admin, _):
        _, _, headers = await router.post()
        status, told = await ask(admin, "GET", f"/explain/{headers['x-steersman-decision-id']}")
        assert status == 200
        assert {c["replica"] for c in told["candidates"]} == {"b0", "b1"}
        assert told["reasons"]
        status, told = await ask(admin, "GET", "/explain/req-none")
        assert (status, told["error"]["code"]) == (404, "not_found")


async def test_without_a_log_nothing_can_be_explained() -> None:
    async with administered() as (_, admin, _):
        status, told = await ask(admin, "GET", "/explain/req-none")
        assert status == 404
        assert "outcome_log.directory" in told["error"]["message"]


async def test_a_token_is_asked_for_on_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", "open sesame")
    async with administered(admin=ADMIN | {"token_env": "ADMIN_TOKEN"}) as (_, admin, _):
        for method, path in (
            ("GET", "/health"),
            ("GET", "/metrics"),
            ("GET", "/config"),
            ("GET", "/replicas"),
            ("POST", "/replicas/b0/drain"),
            ("POST", "/reload"),
            ("GET", "/explain/x"),
        ):
            for headers in ({}, {"authorization": "Bearer open"}, {"authorization": "Basic x"}):
                status, told = await ask(admin, method, path, headers=headers)
                assert (status, told["error"]["code"]) == (401, "admin_only")
        good = {"authorization": "Bearer open sesame"}
        status, told = await ask(admin, "GET", "/config", headers=good)
        assert (status, told["admin"]["token_env"]) == (200, "ADMIN_TOKEN")
        assert "sesame" not in orjson.dumps(told).decode()


def test_a_token_that_is_not_set_is_told() -> None:
    backend = [{"url": "http://127.0.0.1:1"}]
    settings = settings_for([], backends=backend, admin=ADMIN | {"token_env": "NOT_SET"})
    parts = create_app(settings).state.parts
    with pytest.raises(ConfigError, match=r"admin\.token_env.*NOT_SET"):
        create_admin_app(parts, reloader_of(parts), environment={})


async def test_the_operators_address_may_be_taken() -> None:
    async with administered() as (_, admin, fleet):
        port = int(admin.url.rpartition(":")[2])
        settings = settings_for(fleet, admin={"port": port})
        parts = create_app(settings).state.parts
        with pytest.raises(ConfigError, match=r"'admin\.port'"):
            async with admin_listening(parts, reloader_of(parts)):
                pass
