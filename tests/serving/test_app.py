"""The surface: pages, errors, limits."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from steersman.predictors import ledger as L
from tests.serving.backends import backends, completion, whole
from tests.serving.harness import Routed, chat, eventually, rig, routing, settings_for

GOOD = whole(completion())


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"model":"m"}{'], ids=range(7)
)
async def test_rubbish_is_a_400(body: bytes) -> None:
    async with rig(GOOD) as (router, fleet):
        status, got, headers = await router.post(body)
        assert status == 400
        assert error_of(got)["code"] == "invalid_json"
        assert error_of(got)["type"] == "invalid_request_error"
        assert "x-steersman-decision-id" in headers
        assert not fleet[0].received
        assert await router.metric('steersman_refusals_total{reason="invalid_json"}') == 1.0
        assert await router.metric('steersman_responses_total{code="400"}') == 1.0


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_the_limit_is_a_413(chunked: bool) -> None:
    async with rig(GOOD, limits={"body_bytes": 2048}) as (router, fleet):

        async def pieces() -> Any:
            for _ in range(10):
                yield b"x" * 1000

        data = pieces() if chunked else b"x" * 10_000
        async with router.client.post(router.url + "/v1/chat/completions", data=data) as answer:
            assert answer.status == 413
            assert error_of(await answer.read())["code"] == "body_too_large"
        assert (await router.post())[0] == 200
        assert len(fleet[0].received) == 1


async def test_headers_above_the_limit_are_a_431() -> None:
    async with rig(GOOD, limits={"header_bytes": 1024}) as (router, _):
        status, got, _ = await router.post(headers={"x-long": "y" * 2000})
        assert status == 431
        assert error_of(got)["code"] == "headers_too_large"


async def test_a_body_that_does_not_come_is_a_408() -> None:
    async with rig(GOOD, timeouts={"body_s": 0.1, "drain_s": 1}) as (router, _):
        host, _, port = router.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_a_client_that_leaves_while_sending_is_nobodys_fault() -> None:
    async with rig(GOOD) as (router, fleet):
        host, _, port = router.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await eventually(lambda: _is_idle(router))
        assert not fleet[0].received


async def _is_idle(router: Routed) -> bool:
    return bool(await router.metric("steersman_requests_in_flight") == 0.0)


async def test_an_unknown_model_is_a_404() -> None:
    async with rig(GOOD) as (router, _):
        status, got, _ = await router.post(chat() | {"model": "gpt-9"})
        assert status == 404
        error = error_of(got)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'gpt-9'" in error["message"]
        assert "name one of: m" in error["message"]


async def test_without_a_model_the_only_one_serves() -> None:
    async with rig(GOOD) as (router, _):
        status, _, _ = await router.post({"messages": []})
        assert status == 200


async def test_without_a_model_among_several_is_a_400() -> None:
    async with backends(GOOD) as fleet:
        listed = [{"id": "b0", "url": fleet[0].url, "models": ["m", "n"]}]
        async with routing(settings_for(fleet, backends=listed)) as router:
            status, got, _ = await router.post({"messages": []})
            assert status == 400
            assert error_of(got)["code"] == "model_missing"
            assert (await router.post(chat() | {"model": "n"}))[0] == 200


@pytest.mark.parametrize("model", [1, None, {"a": 1}, ["m"]])
async def test_a_model_that_is_no_name_counts_as_missing(model: Any) -> None:
    async with rig(GOOD) as (router, _):
        assert (await router.post(chat() | {"model": model}))[0] == 200


async def test_a_hint_that_is_not_valid_is_a_400() -> None:
    async with rig(GOOD) as (router, _):
        status, got, _ = await router.post(headers={"x-llm-d-slo-ttft-ms": "soon"})
        assert status == 400
        assert error_of(got)["param"] == "x-llm-d-slo-ttft-ms"


async def test_hints_reach_the_policy_and_travel_on() -> None:
    async with rig(GOOD) as (router, fleet):
        hints = {"x-llm-d-slo-ttft-ms": "250", "x-session-id": "s1"}
        assert (await router.post(headers=hints))[0] == 200
        assert fleet[0].received[0].header("x-session-id") == "s1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("GET", "/v1/embeddings", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/m", 405, "method_not_allowed"),
        ("POST", "/v1/images/generations", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
    ],
)
async def test_other_paths(method: str, path: str, status: int, code: str) -> None:
    async with rig(GOOD) as (router, _), router.client.request(method, router.url + path) as answer:
        assert answer.status == status
        assert error_of(await answer.read())["code"] == code
        assert await router.metric(f'steersman_responses_total{{code="{status}"}}') == 1.0
        assert await router.metric(f'steersman_refusals_total{{reason="{code}"}}') == 1.0


async def test_a_query_travels_on() -> None:
    async with rig(GOOD) as (router, fleet):
        await router.post(path="/v1/completions?api-version=1&x=%20y")
        assert fleet[0].received[0].path == "/v1/completions?api-version=1&x=%20y"


@pytest.mark.parametrize("target", [b"?x=\xc3\xbc", b"?x=\x7f", b"?x y"], ids=range(3))
async def test_odd_bytes_in_a_target_are_refused(target: bytes) -> None:
    async with rig(GOOD) as (router, fleet):
        head = b"POST /v1/completions" + target + b" HTTP/1.1\r\nhost: x\r\n"
        answer = await raw(router, head, b"{}")
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert not fleet[0].received


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 2\r\ncontent-length: 3\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"content-length: +2\r\n",
    ],
    ids=range(4),
)
async def test_a_request_of_two_lengths_is_refused(framing: bytes) -> None:
    """Nothing can be smuggled past the router: what it cannot frame, it does not forward."""
    async with rig(GOOD) as (router, fleet):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + framing
        smuggled = b"2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
        answer = await raw(router, head, smuggled, length=False)
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "invalid_http"
        assert not fleet[0].received


async def test_header_bytes_travel_unharmed() -> None:
    async with rig(GOOD) as (router, fleet):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-name: J\xc3\xbcrgen\r\n"
        await raw(router, head, b"{}")
        value = fleet[0].received[0].header("x-name")
        assert value is not None
        assert value.encode("latin-1") == b"J\xc3\xbcrgen"


async def test_a_fault_of_ours_is_a_500_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(GOOD) as (router, _):

        def fault(*_: Any) -> Any:
            raise RuntimeError("boom")

        monkeypatch.setattr(router.parts.router, "prepare", fault)
        status, got, _ = await router.post()
        assert status == 500
        assert error_of(got)["code"] == "internal_error"
        assert b"boom" not in got
        assert await _is_idle(router)


async def raw(router: Routed, head: bytes, body: bytes, *, length: bool = True) -> bytes:
    """The answer to bytes written as they are."""
    host, _, port = router.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    if length:
        head += b"content-length: %d\r\nconnection: close\r\n" % len(body)
    writer.write(head + b"\r\n" + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_models_are_those_of_all_backends() -> None:
    async with backends(GOOD, GOOD) as fleet:
        fleet[1].models = ["other"]
        listed = [{"id": b.name, "url": b.url} for b in fleet]
        async with routing(settings_for(fleet, backends=listed)) as router:
            _, page = await router.get("/v1/models")
            told = orjson.loads(page)
            assert told["object"] == "list"
            assert {card["id"]: card["owned_by"] for card in told["data"]} == {"m": "b0", "other": "b1"}
            _, one = await router.get("/v1/models/other")
            assert orjson.loads(one) == told["data"][1]
            status, none = await router.get("/v1/models/meta/none")
            assert (status, error_of(none)["code"]) == (404, "model_not_found")
            _, _, headers = await router.post(chat() | {"model": "other"})
            assert headers["x-steersman-replica"] == "b1"


async def test_no_healthy_replica_is_a_503_with_retry_after() -> None:
    async with backends(GOOD) as fleet:
        await fleet[0].stop()
        async with routing(settings_for(fleet)) as router:
            status, got, headers = await router.post()
            assert status == 503
            assert error_of(got)["code"] == "no_healthy_replica"
            assert int(headers["retry-after"]) >= 1
            assert (await router.get("/health"))[0] == 503
            await fleet[0].start()
            await eventually(lambda: router.parts.fleet.replicas[0].health.healthy)
            assert (await router.post())[0] == 200
            assert (await router.get("/health"))[0] == 200


async def test_while_models_are_not_known_it_says_so() -> None:
    async with backends(GOOD) as fleet:
        await fleet[0].stop()
        listed = [{"id": "b0", "url": fleet[0].url}]
        async with routing(settings_for(fleet, backends=listed)) as router:
            status, got, headers = await router.post()
            assert status == 503
            assert error_of(got)["code"] == "models_not_known_yet"
            assert "retry-after" in headers
            await fleet[0].start()
            await eventually(lambda: router.parts.fleet.replicas[0].health.healthy)
            assert (await router.post())[0] == 200


async def test_health_tells_who_is_well() -> None:
    async with rig(GOOD, GOOD) as (router, fleet):
        status, page = await router.get("/health")
        report = orjson.loads(page)
        assert (status, report["status"]) == (200, "ok")
        assert report["pools"] == {"m": {"replicas": 2, "healthy": 2}}
        fleet[0].health_status = 500
        await eventually(lambda: not router.parts.fleet.replicas[0].health.healthy)
        status, page = await router.get("/health")
        report = orjson.loads(page)
        assert (status, report["status"]) == (200, "degraded")
        assert report["replicas"]["b0"]["healthy"] is False
        assert fleet[0].url not in page.decode()


async def test_the_metrics_page() -> None:
    async with rig(GOOD, GOOD) as (router, fleet):
        fleet[1].running = 9
        for _ in range(4):
            assert (await router.post())[0] == 200
        seen = router.parts.fleet.state
        await eventually(lambda: seen[1, L.RUNNING] == 9.0 and seen[0, L.WAITING] == 1.0)
        assert await router.metric('steersman_requests_total{model="m",status="ok"}') == 4.0
        assert await router.metric('steersman_responses_total{code="200"}') == 4.0
        assert await router.metric('steersman_decisions_total{policy="round-robin"}') == 4.0
        assert await router.metric("steersman_decision_seconds_count") == 4.0
        assert await router.metric('steersman_replica_requests_total{replica="b0",status="ok"}') == 2.0
        assert await router.metric('steersman_replica_running{replica="b1"}') == 9.0
        assert await router.metric('steersman_replica_healthy{replica="b1"}') == 1.0
        assert await router.metric('steersman_pool_healthy{model="m"}') == 2.0
        jain = await router.metric('steersman_pool_load_jain{model="m"}')
        assert jain == pytest.approx((1 + 10) ** 2 / (2 * (1 + 100)))
        assert await router.metric('steersman_pool_load_max_over_mean{model="m"}') == pytest.approx(
            20 / 11
        )
        assert 0.0 <= await router.metric('steersman_replica_metrics_age_seconds{replica="b0"}') < 5.0


async def test_without_any_model_the_fallback_serves_and_says_why() -> None:
    policy = {"name": "learned", "options": {"shipped": False}}
    async with rig(GOOD, policy=policy) as (router, _):
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "marginal-cost"
        assert headers["x-steersman-fallback"] == "no_model"
        assert await router.metric('steersman_fallbacks_total{reason="no_model"}') == 1.0
