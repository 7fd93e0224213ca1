"""Keys at a router that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from steersman.serving.access.secrets import new_key
from steersman.traces.errors import ConfigError
from tests.serving.access.keys import bearer, make_key, write_keys
from tests.serving.backends import backends, completion, whole
from tests.serving.harness import Routed, chat, eventually, rig, routing, settings_for


def code(body: bytes) -> str:
    return str(orjson.loads(body)["error"]["code"])


def access(path: Path) -> dict[str, Any]:
    return {"key_file": str(path), "interval_s": 0.05}


async def test_only_who_has_a_key_is_served_and_the_key_stays_here(tmp_path: Path) -> None:
    key, entry = make_key(tenant="search")
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with rig(whole(completion()), access=access(file)) as (router, (backend,)):
        status, body, headers = await router.post()
        assert (status, code(body), headers["www-authenticate"]) == (401, "missing_api_key", "Bearer")
        status, body, _ = await router.post(headers=bearer(new_key()[0]))
        assert (status, code(body)) == (401, "invalid_api_key")
        assert not backend.received
        status, _, _ = await router.post(headers=bearer(key) | {"x-kept": "yes"})
        assert status == 200
        assert backend.received[0].header("authorization") is None
        assert backend.received[0].header("x-kept") == "yes"
        assert await router.metric('steersman_refusals_total{reason="invalid_api_key"}') == 1.0


async def test_a_backend_s_own_key_takes_the_place_of_the_client_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "engine-secret")
    key, entry = make_key()
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with backends(whole(completion())) as fleet:
        entry_of = {"id": "b0", "url": fleet[0].url, "models": ["m"], "api_key_env": "BACKEND_KEY"}
        settings = settings_for(fleet, access=access(file), backends=[entry_of])
        async with routing(settings) as router:
            assert (await router.post(headers=bearer(key)))[0] == 200
    assert fleet[0].received[0].header("authorization") == "Bearer engine-secret"


async def test_models_are_listed_and_served_as_the_key_permits(tmp_path: Path) -> None:
    key, entry = make_key(models=["m-*"])
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with backends(whole(completion())) as fleet:
        served = {"id": "b0", "url": fleet[0].url, "models": ["m-small", "other"]}
        settings = settings_for(
            fleet, access=access(file), backends=[served], aliases={"m-alias": "other"}
        )
        async with routing(settings) as router:
            async with openai.AsyncOpenAI(
                base_url=f"{router.url}/v1", api_key=key, max_retries=0
            ) as client:
                listed = [model.id async for model in client.models.list()]
                assert listed == ["m-small", "m-alias"]
                with pytest.raises(openai.PermissionDeniedError, match="may not use this model"):
                    await client.chat.completions.create(model="other", messages=[])
                with pytest.raises(openai.PermissionDeniedError):
                    await client.models.retrieve("other")
                with pytest.raises(openai.NotFoundError) as missing:
                    await client.chat.completions.create(model="x", messages=[])
                assert "m-alias, m-small" in str(missing.value)
                assert "other" not in str(missing.value)
                await client.chat.completions.create(model="m-alias", messages=[])
            async with openai.AsyncOpenAI(
                base_url=f"{router.url}/v1", api_key="k", max_retries=0
            ) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()


async def test_the_key_decides_on_tenant_and_priority(tmp_path: Path) -> None:
    key, entry = make_key(tenant="search", top_priority=1)
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with rig(whole(completion()), access=access(file)) as (router, _):
        mine = bearer(key)
        status, body, _ = await router.post(headers=mine | {"x-steersman-priority": "0"})
        assert (status, code(body)) == (403, "priority_not_allowed")
        status, body, _ = await router.post(headers=mine | {"x-steersman-tenant": "other"})
        assert (status, code(body)) == (403, "tenant_not_allowed")
        assert (await router.post(headers=mine | {"x-steersman-tenant": "search"}))[0] == 200


async def test_the_key_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (old, old_entry), (new, new_entry) = make_key(), make_key()
    path = write_keys(tmp_path / "keys.yaml", old_entry)
    async with rig(whole(completion()), access=access(path)) as (router, _):

        async def status(key: str) -> int:
            return (await router.post(headers=bearer(key)))[0]

        assert (await status(old), await status(new)) == (200, 401)
        write_keys(path, new_entry)
        await eventually(lambda: router.parts.gate._entries.keys() == {new_entry["id"]})  # type: ignore[union-attr]
        assert (await status(old), await status(new)) == (401, 200)
        path.write_text("keys: [{id: x}]\n")
        await refused(router, times=1)
        assert await status(new) == 200
        path.unlink()
        await refused(router, times=2)
        assert await status(new) == 200
    assert "the former API keys stay" in caplog.text
    assert old not in caplog.text


async def refused(router: Routed, *, times: int) -> None:
    async def counted() -> bool:
        line = 'steersman_key_file_loads_total{result="refused"}'
        return await router.metric(line) == float(times)

    await eventually(counted)


def test_a_router_does_not_start_without_its_key_file(tmp_path: Path) -> None:
    from steersman.serving.app import create_app

    settings = settings_for([], backends=[{"url": "http://127.0.0.1:1"}], access=access(tmp_path / "no"))
    with pytest.raises(ConfigError, match="no such file"):
        create_app(settings)


async def test_a_stranger_s_body_is_not_read(tmp_path: Path) -> None:
    _, entry = make_key()
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with rig(whole(completion()), access=access(file)) as (router, _):
        status, body, _ = await router.post(b"{" * 100, headers={})
        assert (status, code(body)) == (401, "missing_api_key")
        assert (await router.post(chat(), headers=bearer("sk-x")))[0] == 401
