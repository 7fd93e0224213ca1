"""What is configured of one replica: names, adapters, priorities, keys, prefixes, TLS, patience."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest

from steersman.serving.app import create_app
from steersman.traces.errors import ConfigError
from tests.serving.backends import Backend, Received, backends, completion, silent, whole
from tests.serving.harness import Routed, chat, eventually, routing, settings_for
from tests.support.certificates import certificate

GOOD = whole(completion())


def entries(fleet: list[Backend], *options: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": b.name, "url": b.url} | more for b, more in zip(fleet, options, strict=True)]


def sent(backend: Backend) -> bytes:
    return backend.received[-1].body


async def test_replicas_of_one_pool_may_have_names_of_their_own() -> None:
    async with backends(GOOD, GOOD) as fleet:
        fleet[0].models = ["meta/llama", "other"]
        fleet[1].models = ["llama"]
        listed = entries(fleet, {"names": {"llama": "meta/llama"}}, {})
        async with routing(settings_for([], backends=listed)) as router:
            _, page = await router.get("/v1/models")
            assert {card["id"] for card in orjson.loads(page)["data"]} == {"llama", "other"}
            body = b'{ "n":1.50, "model" : "llama", "messages":[{"role":"user","content":"model"}]}'
            for _ in range(2):
                assert (await router.post(body))[0] == 200
            assert sent(fleet[0]) == body.replace(b'"llama"', b'"meta/llama"')
            assert sent(fleet[1]) == body
            status, _, _ = await router.post(chat() | {"model": "meta/llama"})
            assert status == 404, "its own name is not ours"


async def test_aliases_are_further_names() -> None:
    async with backends(GOOD) as fleet:
        aliases = {"gpt-4o": "m", "nobody": "gone"}
        async with routing(settings_for(fleet, aliases=aliases)) as router:
            assert (await router.post(chat() | {"model": "gpt-4o"}))[0] == 200
            assert orjson.loads(sent(fleet[0]))["model"] == "m"
            _, page = await router.get("/v1/models")
            assert [card["id"] for card in orjson.loads(page)["data"]] == ["m", "gpt-4o"]
            _, page = await router.get("/v1/models/gpt-4o")
            assert orjson.loads(page)["id"] == "gpt-4o"
            assert (await router.post(chat() | {"model": "nobody"}))[0] == 404
            assert await router.metric('steersman_requests_total{model="m",status="ok"}') == 1.0


async def test_an_adapter_goes_where_it_is_served_and_is_found_while_running() -> None:
    async with backends(GOOD, GOOD) as fleet:
        fleet[1].models = ["m", "sql"]
        fleet[0].metrics = (
            b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
            b'vllm:lora_requests_info{running_lora_adapters="french"} 1.7e9\n'
        )
        listed = entries(fleet, {}, {})
        health = {"interval_s": 0.05, "models_interval_s": 0.05}
        async with routing(settings_for([], backends=listed, health=health)) as router:
            for _ in range(3):
                _, _, headers = await router.post(chat() | {"model": "sql"})
                assert headers["x-steersman-replica"] == "b1"
            fleet[0].models = ["m", "french"]
            await eventually(lambda: "french" in router.parts.fleet.pools)
            _, _, headers = await router.post(chat() | {"model": "french"})
            assert headers["x-steersman-replica"] == "b0"
            await eventually(lambda: router.parts.fleet.replicas[0].adapters == {"french"})
            fleet[1].models = ["m"]
            await eventually(lambda: "sql" not in router.parts.fleet.pools)
            assert (await router.post(chat() | {"model": "sql"}))[0] == 404


@pytest.mark.parametrize(
    ("order", "asked", "expected"),
    [("lower-first", "batch", 2), ("higher-first", "batch", 1), ("higher-first", "0", 3)],
)
async def test_the_engine_is_told_the_priority(order: str, asked: str, expected: int) -> None:
    async with backends(GOOD) as fleet:
        listed = entries(fleet, {"engine_priority": order})
        async with routing(settings_for([], backends=listed)) as router:
            body = b'{"model":"m","messages":[], "odd":1e2}'
            await router.post(body, headers={"x-steersman-priority": asked})
            assert sent(fleet[0]) == b'{"priority":%d,' % expected + body[1:]
            await router.post(b'{"model":"m","priority":9}', headers={"x-steersman-priority": asked})
            assert sent(fleet[0]) == b'{"model":"m","priority":%d}' % expected
            await router.post(b'{"model":"m","input":""}', path="/v1/embeddings")
            assert sent(fleet[0]) == b'{"model":"m","input":""}'


async def test_a_path_prefix_is_in_front_of_every_path() -> None:
    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.path == "/team/llm/v1/models":
            return await whole(b'{"object":"list","data":[{"id":"m"}]}')(request, writer)
        return await GOOD(request, writer)

    async with backends(answer) as fleet:
        listed = [{"id": "b0", "url": fleet[0].url + "/team/llm/v1"}]
        async with routing(settings_for([], backends=listed)) as router:
            assert (await router.post(path="/v1/embeddings?x=1"))[0] == 200
        paths = {request.path for request in fleet[0].received}
        assert paths == {
            "/team/llm/health",
            "/team/llm/metrics",
            "/team/llm/v1/models",
            "/team/llm/v1/embeddings?x=1",
        }


async def test_each_replica_gets_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_B0", "own")
    async with backends(GOOD, GOOD) as fleet:
        async with routing(
            settings_for([], backends=entries(fleet, {"api_key_env": "KEY_OF_B0"}, {}))
        ) as router:
            for _ in range(2):
                await router.post(headers={"authorization": "Bearer client"})
        assert fleet[0].received[0].header("authorization") == "Bearer own"
        assert fleet[1].received[0].header("authorization") == "Bearer client"


async def test_each_replica_has_its_own_patience() -> None:
    async with backends(silent) as fleet:
        listed = entries(fleet, {"first_byte_s": 0.1, "connect_s": 0.1})
        async with routing(settings_for([], backends=listed)) as router:
            status, got, _ = await router.post()
            assert (status, b"backend_timeout" in got) == (504, True)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "engine.test")


@pytest.mark.parametrize(
    ("trust", "status"),
    [
        ({"ca": True, "server_name": "engine.test"}, 200),
        ({"verify": False}, 200),
        ({"ca": True}, 503),
        ({"server_name": "engine.test"}, 503),
        ({"ca": True, "server_name": "other.test"}, 503),
    ],
    ids=["trusted", "not-verified", "other-host", "unknown-authority", "other-name"],
)
async def test_tls(pems: tuple[Path, Path], trust: dict[str, Any], status: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pems)
    tls = {key: value for key, value in trust.items() if key != "ca"}
    tls |= {"ca_file": str(pems[0])} if "ca" in trust else {}
    async with backends(GOOD) as fleet:
        await fleet[0].stop()
        await fleet[0].start(context)
        url = fleet[0].url.replace("http://", "https://")
        listed = [{"id": "b0", "url": url, "models": ["m"], "tls": tls}]
        async with routing(settings_for([], backends=listed)) as router:
            assert (await router.post())[0] == status
            assert well(router) is (status == 200)


def well(router: Routed) -> bool:
    return router.parts.fleet.replicas[0].health.healthy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls": {"ca_file": "/nowhere.pem"}}, "/nowhere.pem cannot be used"),
        ({"tls": {"ca_file": "/x", "verify": False}}, "would ignore"),
        ({"tls": {"key_file": "/x"}}, "without a cert_file"),
        ({"names": {"a": "x", "b": "x"}}, "the same name"),
        ({"engine_priority": "upside-down"}, "engine_priority"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_app(settings_for([], backends=[{"id": "a", "url": "https://a", **options}]))
