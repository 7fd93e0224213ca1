"""The shared server: a real Valkey, and sockets that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.server import Script, SharedDown, SharedServer
from steersman.serving.shared.settings import SharedSettings
from steersman.traces.errors import ConfigError
from tests.support.valkey import Valkey, valkey

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


def shared(url: str, *, environment: dict[str, str] | None = None, **more: object) -> SharedServer:
    options = SharedSettings.model_validate({"url": url, "timeout_s": 2.0} | more)
    return SharedServer(options, RouterMetrics(), environment=environment)


@contextlib.asynccontextmanager
async def misbehaving(handle: Handler) -> AsyncIterator[str]:
    """A server that does this with every connection."""
    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


async def test_many_questions_at_once_get_their_own_answers(server: Valkey) -> None:
    asked = shared(server.url)
    for i in range(200):
        asked.tell("SET", f"k{i}", str(i))
    await asked.settled()
    answers = await asyncio.gather(*(asked.ask("GET", f"k{i}") for i in range(200)))
    assert answers == [str(i).encode() for i in range(200)]
    told = await asked.ask("CLIENT", "LIST")
    assert isinstance(told, bytes)
    assert told.count(b"\n") == 1, "over one connection"
    await asked.close()


async def test_one_who_leaves_does_not_take_another_s_answer(server: Valkey) -> None:
    asked = shared(server.url)
    await asked.ask("SET", "mine", "1")
    leaver = asyncio.create_task(asked.ask("GET", "nothing"))
    await asyncio.sleep(0)
    leaver.cancel()
    assert await asked.ask("GET", "mine") == b"1"
    await asked.close()


async def test_scripts_are_sent_once(server: Valkey) -> None:
    asked, script = shared(server.url), Script("return {KEYS[1], ARGV[1]}")
    await asked.ask("SCRIPT", "FLUSH")
    assert await asked.run(script, ["k"], [0.1]) == [b"k", b"0.1"]
    assert await asked.ask("SCRIPT", "EXISTS", script.sha) == [1]
    assert await asked.run(script, ["k"], [2]) == [b"k", b"2"]
    await asked.close()


async def test_databases_and_passwords(server: Valkey) -> None:
    one, other = shared(server.url), shared(f"{server.url}/3")
    await other.ask("SET", "only-in-3", "1")
    assert await one.ask("GET", "only-in-3") is None
    await one.ask("CONFIG", "SET", "requirepass", "sesame")
    try:
        keys = {"password_env": "PASSWORD"}
        right = shared(server.url, environment={"PASSWORD": "sesame"}, **keys)
        assert await right.ask("PING") == b"PONG"
        for wrong in (shared(server.url), shared(server.url, environment={"PASSWORD": "x"}, **keys)):
            with pytest.raises(SharedDown):
                await wrong.ask("PING")
            await wrong.close()
        named = shared(server.url, environment={"PASSWORD": "sesame"}, username="default", **keys)
        assert await named.ask("PING") == b"PONG"
        await right.ask("CONFIG", "SET", "requirepass", "")
        for each in (right, named):
            await each.close()
    finally:
        await one.close()
        await other.close()
    with pytest.raises(ConfigError, match=r"shared\.password_env.*PASSWORD"):
        shared(server.url, environment={}, password_env="PASSWORD")


async def test_a_server_that_hangs_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with misbehaving(hang) as url:
        asked = shared(url, timeout_s=0.05, retry_s=60.0)
        questions = await asyncio.gather(*(asked.ask("PING") for _ in range(20)), return_exceptions=True)
        assert {type(answer) for answer in questions} == {SharedDown}
        with pytest.raises(SharedDown):
            await asked.ask("PING")
        asked.tell("SET", "k", "v")
        await asked.close()
        assert caplog.text.count("the shared server fails (TimeoutError)") == 1


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n+OK\r\n+OK\r\n", b""])
async def test_a_server_of_another_kind_is_down(said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(said)
        await writer.drain()
        writer.close()

    async with misbehaving(speak) as url:
        asked = shared(url, timeout_s=0.5, retry_s=0.01)
        for _ in range(3):
            with contextlib.suppress(SharedDown):
                assert await asked.ask("PING") == b"OK"
            await asyncio.sleep(0.02)
        await asked.close()


async def test_nobody_there_is_down_at_once() -> None:
    asked = shared("redis://127.0.0.1:1", retry_s=60.0)
    with pytest.raises(SharedDown):
        await asked.ask("PING")
    await asked.close()
