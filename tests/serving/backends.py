"""Small real backends: they speak HTTP over a socket and misbehave byte by byte as told."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import orjson


@dataclass
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Backend:
    """One replica on a loopback port."""

    name: str
    answer: Behaviour
    models: list[str] = field(default_factory=lambda: ["m"])
    running: int = 0
    health_status: int = 200
    metrics: bytes | None = None
    frozen: bool = False
    """It takes connections and requests, and answers none, not even checks, until it thaws."""
    pages_frozen: bool = False
    """As above, for checks and scrapes only."""
    received: list[Received] = field(default_factory=list)
    hung_up: int = 0
    """Requests whose client went away before the answer was complete."""
    scrapes: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, secure: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=secure)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Vanish: no listener, every connection reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # accepted just before it vanished
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                await self._dispatch(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _dispatch(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_page = request.path in {"/health", "/v1/models", "/metrics"}
        while self.frozen or (is_page and self.pages_frozen):
            await asyncio.sleep(0.005)
            if reader.at_eof():
                raise ConnectionResetError
        if request.path == "/health":
            await whole(b"", status=self.health_status)(request, writer)
        elif request.path == "/v1/models":
            data = [{"id": model, "object": "model", "owned_by": self.name} for model in self.models]
            await whole(orjson.dumps({"object": "list", "data": data}))(request, writer)
        elif request.path == "/metrics":
            self.scrapes += 1
            page = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 1\n".encode()
            await whole(self.metrics if self.metrics is not None else page)(request, writer)
        else:
            await self._answer(request, reader, writer)

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.received.append(request)
        answering = asyncio.ensure_future(self.answer(request, writer))
        gone = asyncio.ensure_future(_at_end(reader))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.hung_up += 1
                raise ConnectionResetError
            answering.result()
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


@contextlib.asynccontextmanager
async def backends(*answers: Behaviour) -> AsyncIterator[list[Backend]]:
    """Backends b0, b1, … with these behaviours, listening."""
    made = [Backend(f"b{i}", answer) for i, answer in enumerate(answers)]
    for backend in made:
        await backend.start()
    try:
        yield made
    finally:
        for backend in made:
            await backend.stop()


def whole(
    body: bytes,
    *,
    status: int = 200,
    headers: str = "",
    content_type: str = "application/json",
    delay_s: float = 0.0,
) -> Behaviour:
    """A complete answer."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{headers}"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return answer


def completion(text: str = "hello", *, prompt_tokens: int = 7, completion_tokens: int = 3) -> bytes:
    """The body of a chat completion."""
    return orjson.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
        }
    )


def events(count: int, *, usage: bool = True) -> list[bytes]:
    """The events of a chat stream of `count` tokens, as vLLM sends them."""
    made = [b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n']
    for i in range(count):
        delta = {"choices": [{"index": 0, "delta": {"content": f"tok\ndata: {i} ü"}}]}
        made.append(b"data: " + orjson.dumps(delta) + b"\n\n")
    if usage:
        counted = {"prompt_tokens": 11, "completion_tokens": count}
        details = {"prompt_tokens_details": {"cached_tokens": 4}}
        made.append(b"data: " + orjson.dumps({"choices": [], "usage": counted | details}) + b"\n\n")
    return [*made, b"data: [DONE]\n\n"]


def stream(
    pieces: list[bytes],
    *,
    delay_s: float = 0.0,
    then: str = "end",
    headers_first: bool = False,
    status: int = 200,
) -> Behaviour:
    """A stream in pieces; `then` is `end`, `abort` (the connection breaks) or `hang`."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 %d Said\r\ncontent-type: text/event-stream; charset=utf-8\r\n" % status
            + b"x-backend: yes\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if headers_first:
            await writer.drain()
            await asyncio.sleep(0.02)
        for piece in pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(delay_s)
        if then == "abort":
            writer.transport.abort()
            raise ConnectionResetError
        if then == "hang":
            await asyncio.sleep(3600)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


async def reset(request: Received, writer: asyncio.StreamWriter) -> None:
    """The connection breaks before any answer."""
    writer.transport.abort()
    raise ConnectionResetError


async def silent(request: Received, writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.sleep(3600)


async def _at_end(reader: asyncio.StreamReader) -> None:
    """Without reading: the next request may come any time."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = [(key.lower(), value.strip()) for key, _, value in (ln.partition(":") for ln in lines)]
    length = next((int(value) for key, value in headers if key == "content-length"), 0)
    return Received(method, path, headers, await reader.readexactly(length))
