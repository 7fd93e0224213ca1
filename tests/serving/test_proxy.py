"""Requests over real sockets: bytes, retries, interruptions."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
import pytest

from steersman.predictors import ledger as L
from tests.serving.backends import (
    Behaviour,
    Received,
    completion,
    events,
    reset,
    silent,
    stream,
    whole,
)
from tests.serving.harness import chat, eventually, rig


async def test_a_whole_answer_passes_byte_by_byte() -> None:
    body = completion("  ü\n")
    async with rig(whole(body, headers="x-odd: kept\r\n")) as (router, fleet):
        sent = b'{ "model":"m",  "messages":[{"role":"user","content":"hi"}], "odd":1.50 }'
        status, got, headers = await router.post(sent, headers={"x-own": "1"})
        assert (status, got) == (200, body)
        assert headers["x-odd"] == "kept"
        assert headers["x-steersman-replica"] == "b0"
        assert headers["x-steersman-policy"] == "round-robin"
        assert headers["x-steersman-decision-id"].startswith("req-")
        assert "x-steersman-fallback" not in headers
    assert fleet[0].received[0].body == sent
    assert fleet[0].received[0].header("x-own") == "1"
    assert fleet[0].received[0].header("accept-encoding") == "identity"


async def test_a_stream_passes_byte_by_byte_however_it_is_cut() -> None:
    text = b"".join(events(20))
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    async with rig(stream(pieces)) as (router, _fleet):
        status, got, headers = await router.post(chat(stream=True))
        assert (status, got) == (200, text)
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["x-backend"] == "yes"
        assert await router.metric('steersman_output_tokens_total{model="m"}') == 20.0
        assert await router.metric('steersman_input_tokens_total{model="m"}') == 11.0


async def test_the_first_piece_does_not_wait_for_the_others() -> None:
    async with rig(stream(events(3), then="hang")) as (router, fleet):
        async with router.client.post(
            router.url + "/v1/chat/completions", json=chat(stream=True)
        ) as answer:
            first = await asyncio.wait_for(answer.content.readany(), 5)
            assert first.startswith(b'data: {"choices"')
            answer.close()
        await eventually(lambda: fleet[0].hung_up == 1)


@pytest.mark.parametrize(
    "failing",
    [
        reset,
        stream([], then="abort", headers_first=True),
        stream([]),
        whole(b'{"error":{}}', status=503),
        whole(b'{"error":{}}', status=500),
        whole(b"{}", status=429),
    ],
    ids=["reset", "reset-after-headers", "empty-stream", "503", "500", "429"],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_fails_before_the_first_byte_is_tried_elsewhere(
    failing: Behaviour, streaming: bool
) -> None:
    text = b"".join(events(2))
    good = stream([text]) if streaming else whole(text)
    async with rig(failing, good) as (router, fleet):
        answers = [await router.post(chat(stream=streaming)) for _ in range(4)]
        assert {(status, got) for status, got, _ in answers} == {(200, text)}
        assert {headers["x-steersman-replica"] for _, _, headers in answers} == {"b1"}
        assert len(fleet[0].received) >= 1
        row = router.parts.fleet.state[:, 17:22]
        assert not row.any(), "the account is balanced"


async def test_a_truncated_whole_answer_is_tried_elsewhere() -> None:
    body = completion()

    async def truncated(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{"
        )
        await writer.drain()
        await reset(request, writer)

    async with rig(truncated, whole(body)) as (router, _fleet):
        answers = [await router.post() for _ in range(2)]
        assert {(status, got) for status, got, _ in answers} == {(200, body)}


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    pieces = events(5)[:3]
    async with rig(stream(pieces, then="abort")) as (router, fleet):
        status, got, _ = await router.post(chat(stream=True))
        assert status == 200
        assert got.startswith(b"".join(pieces))
        last = got[len(b"".join(pieces)) :]
        error = orjson.loads(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "stream_broken"
        assert error["type"] == "server_error"
        assert await router.metric('steersman_requests_total{model="m",status="failed"}') == 1.0
    assert len(fleet[0].received) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        events(5)[:3],
        [*events(5)[:3], b'data: {"error":{"message":"out of memory"}}\n\n', b"data: [DONE]\n\n"],
    ],
    ids=["no-done", "error-event"],
)
async def test_a_stream_that_is_not_complete_passes_but_teaches_nothing(pieces: list[bytes]) -> None:
    async with rig(stream(pieces)) as (router, _fleet):
        status, got, _ = await router.post(chat(stream=True))
        assert (status, got) == (200, b"".join(pieces))
        assert await router.metric('steersman_requests_total{model="m",status="failed"}') == 1.0
        assert await router.metric('steersman_output_tokens_total{model="m"}') == 0.0
        (row,) = router.parts.fleet.state
        assert not row[17:22].any(), "the account is balanced"
        assert row[L.MEAN_E2E_S] == row[L.MEAN_TPOT_S] == 0.0


async def test_a_stream_that_falls_silent_ends_with_an_error_event() -> None:
    pieces = events(5)[:2]
    settings = {"timeouts": {"idle_s": 0.2, "drain_s": 1.0}}
    async with rig(stream(pieces, then="hang"), **settings) as (router, fleet):
        status, got, _ = await router.post(chat(stream=True))
        assert status == 200
        assert b'"code":"backend_timeout"' in got
        await eventually(lambda: fleet[0].hung_up == 1)


@pytest.mark.parametrize("then", ["hang", "abort"])
async def test_a_large_whole_answer_that_is_cut_short_does_not_look_complete(then: str) -> None:
    async def cut_short(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n")
        writer.write(b'{"choices":' + b" " * 100)
        await writer.drain()
        await asyncio.sleep(0.05)
        await (silent if then == "hang" else reset)(request, writer)

    settings = {"timeouts": {"idle_s": 0.2, "drain_s": 1.0}, "limits": {"hold_bytes": 10}}
    async with rig(cut_short, **settings) as (router, _fleet):
        with pytest.raises(aiohttp.ClientPayloadError):
            await router.post()
        failed = 'steersman_requests_total{model="m",status="failed"}'
        assert await router.metric(failed) == 1.0
        assert not router.parts.fleet.state[:, 17:22].any()


async def test_a_first_byte_that_never_comes_is_a_504() -> None:
    settings = {"timeouts": {"first_byte_s": 0.2, "connect_s": 0.1, "drain_s": 1.0}}
    async with rig(silent, **settings) as (router, fleet):
        status, got, _ = await router.post()
        assert status == 504
        assert orjson.loads(got)["error"]["code"] == "backend_timeout"
        await eventually(lambda: fleet[0].hung_up == 1)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_goes_away_cancels_the_replicas_work(streaming: bool) -> None:
    async with rig(silent) as (router, fleet):
        asking = asyncio.create_task(router.post(chat(stream=streaming)))
        await eventually(lambda: len(fleet[0].received) == 1)
        asking.cancel()
        await eventually(lambda: fleet[0].hung_up == 1)
        await eventually(lambda: not router.parts.fleet.state[0, 17:22].any())
        cancelled = 'steersman_requests_total{model="m",status="cancelled"}'
        assert await router.metric(cancelled) == 1.0
        assert router.parts.fleet.replicas[0].health.healthy


async def test_errors_of_the_client_pass_and_say_nothing_about_the_replica() -> None:
    refusal = b'{"error":{"message":"bad temperature"}}'
    async with rig(whole(refusal, status=400)) as (router, fleet):
        for _ in range(5):
            status, got, _ = await router.post()
            assert (status, got) == (400, refusal)
        assert len(fleet[0].received) == 5
        assert router.parts.fleet.replicas[0].health.healthy
        assert await router.metric('steersman_requests_total{model="m",status="rejected"}') == 5.0


async def test_when_everybody_refuses_the_last_words_pass() -> None:
    refusal = b'{"error":{"message":"overloaded"}}'
    busy = whole(refusal, status=503, headers="retry-after: 7\r\n")
    async with rig(busy, busy) as (router, fleet):
        status, got, headers = await router.post()
        assert (status, got, headers["retry-after"]) == (503, refusal, "7")
        assert [len(backend.received) for backend in fleet] == [1, 1]


async def test_with_nobody_else_to_ask_nothing_counts_as_a_retry() -> None:
    async with rig(reset) as (router, fleet):
        assert (await router.post())[0] == 503
        assert b"steersman_retries_total{" not in (await router.get("/metrics"))[1]
        assert await router.metric("steersman_retries_denied_total") == 0.0
    assert len(fleet[0].received) == 1


async def test_retry_after_is_honoured() -> None:
    busy = whole(b"{}", status=429, headers="retry-after: 30\r\n")
    async with rig(busy, whole(completion())) as (router, fleet):
        for _ in range(6):
            assert (await router.post())[0] == 200
    assert len(fleet[0].received) == 1
    assert len(fleet[1].received) == 6


async def test_the_retry_budget_bounds_retries() -> None:
    retries = {"budget_burst": 2, "budget_ratio": 0.0, "most_broken": 0}
    settings = {"retries": retries, "health": {"failures": 100}}
    async with rig(reset, reset, reset, **settings) as (router, fleet):
        for _ in range(5):
            status, got, headers = await router.post()
            assert status == 503
            assert orjson.loads(got)["error"]["code"] == "backend_unreachable"
            assert "retry-after" in headers
        assert await router.metric("steersman_retries_denied_total") >= 4.0
    assert sum(len(backend.received) for backend in fleet) == 5 + 2


async def test_killing_a_backend_under_load_costs_no_request_that_had_not_begun() -> None:
    text = b"".join(events(10))
    slow = stream(events(10), delay_s=0.01)
    async with rig(slow, slow, slow) as (router, fleet):

        async def ask() -> bytes:
            status, got, _ = await router.post(chat(stream=True))
            assert status == 200
            return got

        async def load() -> list[bytes]:
            asked = []
            for _ in range(60):
                asked.append(asyncio.create_task(ask()))
                await asyncio.sleep(0.005)
            return await asyncio.gather(*asked)

        loading = asyncio.create_task(load())
        await asyncio.sleep(0.1)
        await fleet[0].stop()
        answers = await loading
        broken = [got for got in answers if got != text]
        # Those that had begun to answer on the replica that died say so; all others are whole.
        assert all(b"stream_broken" in got and got.startswith(b"data: ") for got in broken)
        assert len(broken) <= 20
        assert not router.parts.fleet.replicas[0].health.healthy
        assert not router.parts.fleet.state[:, 17:22].any()
