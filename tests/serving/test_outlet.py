"""Answers on their way to a client: their bytes, their ends, and clients that are slow or go."""

from __future__ import annotations

import asyncio

import orjson

from tests.serving.backends import events, stream
from tests.serving.harness import CHAT, Routed, chat, eventually, rig
from tests.serving.raw import line, sized

BODY = orjson.dumps(chat(stream=True))
OLD = b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(BODY), BODY)
LARGE = [b"data: " + b"x" * 2**16 + b"\n\n"] * 256
"""16 MiB: more than the sockets between two processes hold."""


class Ear(asyncio.Protocol):
    """Notes what comes together."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)


async def ask(router: Routed) -> tuple[asyncio.Transport, Ear]:
    host, port = router.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    transport, ear = await loop.create_connection(Ear, host, int(port))
    transport.write(sized(BODY))
    return transport, ear


async def test_the_head_comes_with_the_first_piece_and_the_end_with_the_last() -> None:
    pieces = events(3)
    async with rig(stream([*pieces[:-2], b"".join(pieces[-2:])], delay_s=0.02)) as (router, _):
        transport, ear = await ask(router)
        await eventually(lambda: ear.heard and ear.heard[-1].endswith(b"0\r\n\r\n"))
        transport.close()
    assert pieces[0] in ear.heard[0]
    assert b"transfer-encoding: chunked" in ear.heard[0].partition(b"\r\n\r\n")[0]


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    pieces = events(4)
    async with rig(stream(pieces)) as (router, _), line(router) as open_line:
        open_line.send(OLD)
        head, _, body = (await open_line.rest()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head
        assert body == b"".join(pieces)


async def test_a_client_that_is_slow_gets_all_of_it() -> None:
    async with rig(stream([*LARGE, b"data: [DONE]\n\n"])) as (router, (backend,)):
        transport, ear = await ask(router)
        await eventually(lambda: ear.heard)
        for _ in range(20):
            transport.pause_reading()
            await asyncio.sleep(0.01)
            transport.resume_reading()
            await asyncio.sleep(0)
        await eventually(lambda: ear.heard[-1].endswith(b"0\r\n\r\n"))
        transport.close()
        assert sum(piece.count(b"x") for piece in ear.heard) >= 256 * 2**16
        assert backend.hung_up == 0


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    async with rig(stream([*LARGE, b"data: [DONE]\n\n"]), timeouts={"idle_s": 0.2}) as (router, _):
        transport, ear = await ask(router)
        await eventually(lambda: ear.heard)
        transport.pause_reading()
        await eventually(lambda: router.parts.fleet.is_idle(router.parts.fleet.replicas[0]))
        assert await router.metric('steersman_requests_total{model="m",status="cancelled"}') == 1.0
        transport.resume_reading()
        await eventually(transport.is_closing)
        assert sum(map(len, ear.heard)) < sum(map(len, LARGE)), "the rest was dropped, not kept for it"


async def test_a_client_that_goes_is_noticed_with_another_request_waiting_behind() -> None:
    async with rig(stream(events(1)[:1], then="hang")) as (router, (backend,)):
        async with line(router) as open_line:
            open_line.send(sized(BODY) + sized(BODY))
            await eventually(lambda: len(backend.received) == 1)
        await eventually(lambda: backend.hung_up == 1)
