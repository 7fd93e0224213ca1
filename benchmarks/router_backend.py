"""A replica that costs next to nothing: the same streamed answer to every POST, over a raw protocol.

::

    python benchmarks/router_backend.py PORT [PORT ...]

The first event leaves at once, the others `interval_ms` apart; `POST /control?interval_ms=200` changes
that for answers to come. The `id` of an event is the moment it left (monotonic clock, which processes
of one machine share), so that the client can tell how long each was on its way. GET answers what routers
ask of an engine: its health, its models, its metrics.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import cast

import uvloop

EVENTS = 20
"""Of an answer, `[DONE]` not counted."""
INTERVAL_MS = 10.0
MODEL = "m"
ID = b"chatcmpl-"
ID_DIGITS = 20

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHUNK = (
    b'data: {"id":"chatcmpl-%020d","object":"chat.completion.chunk","created":1790000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-%020d","object":"chat.completion.chunk","created":1790000000,"model":"m",'
    b'"choices":[],"usage":{"prompt_tokens":21,"total_tokens":40,"completion_tokens":19}}\n\n'
    b"data: [DONE]\n\n"
)
_MODELS = (
    b'{"object":"list","data":[{"id":"m","object":"model","created":1790000000,"owned_by":"vllm",'
    b'"root":"m","parent":null,"max_model_len":131072}]}'
)
_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="27000"} 1.0
"""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CONTROL = re.compile(rb"POST /control\?interval_ms=(\d+) ")


class Pace:
    """Time between two events, shared by all connections."""

    def __init__(self, interval_ms: float) -> None:
        self.interval_s = interval_ms / 1000.0


class Backend(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._sent = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A router connects."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is none of it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """It went away."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Another piece of a request."""
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head, rest = self._received[: head_end + 2], self._received[head_end + 4 :]
        length = _LENGTH.search(head)
        if length is not None and len(rest) < int(length[1]):
            return
        if b"transfer-encoding: chunked" in head.lower() and not rest.endswith(b"0\r\n\r\n"):
            return
        self._received = b""
        self._answer(head)

    def _answer(self, head: bytes) -> None:
        control = _CONTROL.match(head)
        if control is not None:
            self._pace.interval_s = int(control[1]) / 1000.0
            self._page(b"{}", b"application/json")
        elif head.startswith(b"POST"):
            self._sent = 0
            self._transport.write(_HEAD)
            self._event()
        elif b" /metrics" in head:
            self._page(_METRICS, b"text/plain; version=0.0.4")
        else:
            self._page(_MODELS, b"application/json")

    def _page(self, body: bytes, kind: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
        self._transport.write(head + body)

    def _event(self) -> None:
        self._sent += 1
        last = self._sent == EVENTS
        event = (_LAST if last else _CHUNK) % time.monotonic_ns()
        piece = b"%x\r\n%b\r\n" % (len(event), event)
        if last:
            self._transport.write(piece + b"0\r\n\r\n")
        else:
            self._transport.write(piece)
            self._timer = self._loop.call_later(self._pace.interval_s, self._event)


async def serve(ports: list[int]) -> None:
    """Be a replica at each of these ports, for ever."""
    pace = Pace(INTERVAL_MS)
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: Backend(pace), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))
