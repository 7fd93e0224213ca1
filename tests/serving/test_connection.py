"""The bytes of connections: framing that two servers could read in two ways, and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from steersman.serving.connection import LINGER_S
from tests.serving.backends import Backend, completion, events, stream, whole
from tests.serving.harness import Routed, chat, eventually, rig
from tests.serving.raw import line, post, sized

BODY = orjson.dumps(chat())
LENGTH = b"content-length: %d" % len(BODY)
CHUNKED = b"transfer-encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
FAST = {"headers_s": 0.3, "keep_alive_s": 1.0, "body_s": 0.3, "drain_s": 1.0}


@pytest.fixture
async def served() -> AsyncIterator[tuple[Routed, Backend]]:
    async with rig(whole(completion()), timeouts=FAST) as (router, (backend,)):
        yield router, backend


AMBIGUOUS = {
    "length and chunks": post(b"content-length: 5", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED),
    "chunks and length": post(CHUNKED, b"content-length: 5", body=b"0\r\n\r\n" + SMUGGLED),
    "two lengths": post(b"content-length: 2", b"content-length: 60", body=b"{}" + SMUGGLED),
    "one length twice": post(b"content-length: 2", b"content-length: 2", body=b"{}"),
    "lengths in one line": post(b"content-length: 2, 2", body=b"{}"),
    "a signed length": post(b"content-length: +2", body=b"{}"),
    "a length in hex": post(b"content-length: 0x2", body=b"{}"),
    "a huge length": post(b"content-length: 99999999999999999999999", body=b"{}"),
    "a blank before the colon": post(b"content-length : 2", body=b"{}"),
    "a folded header": post(b"x-a: b\r\n content-length: 2", body=b"{}"),
    "a bare carriage return": post(b"x-a: b\rcontent-length: 2", body=b"{}"),
    "a bare line feed": post(b"x-a: b\nx-b: c", b"content-length: 2", body=b"{}"),
    "a zero byte": post(b"x-a: b\0c", b"content-length: 2", body=b"{}"),
    "chunked, misspelt": post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "chunked, in quotes": post(b'transfer-encoding: "chunked"', body=b"0\r\n\r\n"),
    "chunked, then more": post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked, by a tab": post(b"transfer-encoding:\x0bchunked", body=b"0\r\n\r\n"),
    "a chunk without a size": post(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n"),
    "a chunk of a huge size": post(CHUNKED, body=b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
    "a chunk of a negative size": post(CHUNKED, body=b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than it says": post(CHUNKED, body=b"1\r\n{}\r\n0\r\n\r\n"),
    "chunks by line feeds": post(CHUNKED, body=b"2\n{}\n0\n\n"),
    "chunks in HTTP/1.0": b"POST /v1/chat/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "a tunnel": b"CONNECT evil.example:80 HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    "no name": post(b": x", b"content-length: 2", body=b"{}"),
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_what_can_be_read_in_two_ways_is_refused(
    served: tuple[Routed, Backend], request_bytes: bytes
) -> None:
    router, backend = served
    async with line(router) as open_line:
        open_line.send(request_bytes)
        status, body = await open_line.answer()
        assert (status, orjson.loads(body)["error"]["code"]) == (400, "invalid_http")
        assert await open_line.rest() == b"", "and the connection is closed"
    assert not backend.received


async def test_the_target_s_host_and_the_header_s_choose_nothing(served: tuple[Routed, Backend]) -> None:
    router, backend = served
    async with line(router) as open_line:
        evil = b"POST http://evil.example:80/v1/chat/completions HTTP/1.1\r\nhost: evil.example\r\n"
        more = b"x-forwarded-host: evil.example\r\nforwarded: host=evil.example\r\n"
        open_line.send(evil + more + LENGTH + b"\r\n\r\n" + BODY)
        assert (await open_line.answer())[0] == 200
    (received,) = backend.received
    assert received.path == "/v1/chat/completions"
    assert received.header("host") == backend.url.removeprefix("http://")


async def test_trailers_are_no_headers(served: tuple[Routed, Backend]) -> None:
    router, backend = served
    async with line(router) as open_line:
        last = CHUNKS.removesuffix(b"\r\n")
        open_line.send(post(CHUNKED, body=last + b"x-steersman-priority: 3\r\nx-evil: 1\r\n\r\n"))
        assert (await open_line.answer())[0] == 200
        open_line.send(sized(BODY))
        assert (await open_line.answer())[0] == 200
    assert [r.header("x-evil") or r.header("x-steersman-priority") for r in backend.received] == [
        None
    ] * 2


OFFER = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAARAAAAA")


@pytest.mark.parametrize("framing", [(LENGTH, BODY), (CHUNKED, CHUNKS)], ids=["length", "chunks"])
@pytest.mark.parametrize("cut", [0, 1, 40])
async def test_an_upgrade_is_declined_and_the_body_is_no_request(
    served: tuple[Routed, Backend], framing: tuple[bytes, bytes], cut: int
) -> None:
    router, backend = served
    header, body = framing
    async with line(router) as open_line:
        open_line.send(post(*OFFER, header, body=body[:cut]))
        await asyncio.sleep(0.02)
        open_line.send(body[cut:])
        assert (await open_line.answer())[0] == 200
        open_line.send(sized(BODY))
        assert (await open_line.answer())[0] == 200
    assert [received.body for received in backend.received] == [BODY, BODY]
    assert backend.received[0].header("upgrade") is None


async def test_an_upgrade_without_a_body_and_a_request_after_it(served: tuple[Routed, Backend]) -> None:
    router, _ = served
    async with line(router) as open_line:
        asked = (
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        open_line.send(asked + b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await open_line.answer())[0] == 200
        assert (await open_line.answer())[0] == 404


async def test_a_head_that_does_not_come_in_time_is_refused(served: tuple[Routed, Backend]) -> None:
    router, _ = served
    async with line(router) as silent, line(router) as first, line(router) as second:
        second.send(sized(BODY))
        assert (await second.answer())[0] == 200
        for byte in b"POST /v1":
            first.send(bytes([byte]))
            second.send(bytes([byte]))
            await asyncio.sleep(0.1)
        for slow in (first, second):
            status, body = await slow.answer()
            assert (status, orjson.loads(body)["error"]["code"]) == (408, "headers_timeout")
            assert await slow.rest() == b""
        assert await silent.rest() == b""


async def test_headers_that_drip_are_cut_off(served: tuple[Routed, Backend]) -> None:
    router, _ = served
    async with line(router) as slow:
        slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        for i in range(12):
            slow.send(b"x-%d: y\r\n" % i)
            await asyncio.sleep(0.05)
        status, body = await slow.answer()
        assert (status, orjson.loads(body)["error"]["code"]) == (408, "headers_timeout")
        assert await slow.rest() == b""


async def test_a_body_that_drips_is_cut_off_even_after_its_answer(
    served: tuple[Routed, Backend],
) -> None:
    router, _ = served
    async with line(router) as slow:
        slow.send(post(b"content-length: 1000000", body=b"{"))
        started_s = asyncio.get_running_loop().time()
        status, body = await slow.answer()
        assert (status, orjson.loads(body)["error"]["code"]) == (408, "body_timeout")

        async def dripping() -> None:
            while True:
                slow.send(b" ")
                await asyncio.sleep(0.05)

        drip = asyncio.create_task(dripping())
        assert await slow.rest(LINGER_S + 3.0) == b""
        drip.cancel()
        assert asyncio.get_running_loop().time() - started_s < LINGER_S + 3.0


async def test_an_answer_before_the_end_of_the_body_can_be_read() -> None:
    small = rig(whole(completion()), limits={"body_bytes": 2000})
    async with small as (router, _), line(router) as open_line:
        body = b"x" * 3_000_000
        open_line.send(post(b"content-length: %d" % len(body), body=body))
        status, told = await open_line.answer()
        assert (status, orjson.loads(told)["error"]["code"]) == (413, "body_too_large")
        await open_line.writer.drain()
        open_line.send(sized(BODY))
        assert (await open_line.answer())[0] == 200, "the connection can be used again"


@pytest.mark.parametrize("head", [b"x-a: " + b"y" * 60_000, b"x-a: y\r\n" * 20_000])
async def test_a_head_without_end_is_refused(served: tuple[Routed, Backend], head: bytes) -> None:
    router, _ = served
    async with line(router) as open_line:
        open_line.send(b"GET /health HTTP/1.1\r\nhost: x\r\n" + head)
        status, body = await open_line.answer()
        assert (status, orjson.loads(body)["error"]["code"]) == (431, "headers_too_large")
        assert await open_line.rest() == b""


async def test_blank_lines_do_not_keep_a_connection(served: tuple[Routed, Backend]) -> None:
    router, _ = served
    async with line(router) as open_line:
        open_line.send(sized(BODY))
        assert (await open_line.answer())[0] == 200
        open_line.send(b"\r\n\r\n")
        assert await open_line.rest() == b""


async def test_connections_are_counted() -> None:
    crowded = rig(whole(completion()), limits={"connections": 2})
    async with crowded as (router, _), line(router) as one, line(router) as two:
        two.send(sized(BODY))
        assert (await two.answer())[0] == 200
        async with line(router) as third:
            status, body = await third.answer()
            assert (status, orjson.loads(body)["error"]["code"]) == (503, "too_many_connections")
            assert await third.rest() == b""
        one.send(sized(BODY))
        assert (await one.answer())[0] == 200


async def test_rubbish_behind_a_request_does_not_touch_its_answer() -> None:
    pieces = events(20)
    async with rig(stream(pieces, delay_s=0.005)) as (router, _):
        async with line(router) as open_line:
            open_line.send(sized(orjson.dumps(chat(stream=True))) + b"\x00rubbish\r\n\r\n")
            answer = await open_line.rest()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b"invalid_http" not in answer
        # The same behind two requests of which the second must wait.
        async with line(router) as open_line:
            request = sized(orjson.dumps(chat(stream=True)))
            open_line.send(request + request + b"\x00rubbish\r\n\r\n")
            answer = await open_line.rest()
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_broken_requests_are_counted_and_not_logged(
    served: tuple[Routed, Backend], caplog: pytest.LogCaptureFixture
) -> None:
    router, _ = served
    for _ in range(3):
        async with line(router) as open_line:
            open_line.send(b"\x16\x03\x01\x02\x00\x01")
            assert (await open_line.answer())[0] == 400
    assert await router.metric('steersman_refusals_total{reason="invalid_http"}') == 3.0
    assert not caplog.records


async def test_clients_that_vanish_leave_nothing_behind(served: tuple[Routed, Backend]) -> None:
    router, _ = served
    for data in (b"", b"POST /v1", post(b"content-length: 100", body=b"{"), sized(BODY)):
        async with line(router) as open_line:
            open_line.send(data)
            await asyncio.sleep(0.01)
            open_line.writer.transport.abort()
    await eventually(lambda: not router.connections)
