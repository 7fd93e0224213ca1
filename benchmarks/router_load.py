"""Closed-loop streaming load over raw connections, and what it saw.

A client that parses every event measures itself: here a stream is only searched for its newest `id`
(when the backend sent it) and its end, and its events are counted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from router_backend import EVENTS, ID, ID_DIGITS, MODEL

_BODY = (
    b'{"model":"%b","messages":[{"role":"system","content":"You are a helpful assistant."},'
    b'{"role":"user","content":"Explain in a few words what a load balancer does, and why."}],'
    b'"max_tokens":64,"temperature":0.7,"stream":true,"stream_options":{"include_usage":true}}'
) % MODEL.encode()
_END = b"0\r\n\r\n"
PATIENCE_S = 60.0
"""For the requests in flight at the end."""


@dataclass
class Seen:
    """What came of a load."""

    ttft_s: list[float] = field(default_factory=list)
    """From sending a request to the first event of its answer."""
    delay_s: list[float] = field(default_factory=list)
    """On its way from the backend: the newest event of each piece that arrived."""
    completed: int = 0
    failed: int = 0
    first: str = ""
    """What the first failure was."""
    elapsed_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Answers per second."""
        return self.completed / self.elapsed_s

    def quantile_ms(self, values: list[float], q: float) -> float:
        """Of `ttft_s` or `delay_s`."""
        found: NDArray[np.float64] = np.asarray(values)
        return 1000.0 * float(np.quantile(found, q)) if len(found) else float("nan")


class Client(asyncio.Protocol):
    """One connection that asks again and again until `until_s`."""

    def __init__(self, port: int, until_s: float, seen: Seen) -> None:
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: load\r\n"
            b"accept: */*\r\nauthorization: Bearer sk-load\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b"
        ) % (port, len(_BODY), _BODY)
        self._until_s = until_s
        self._seen = seen
        self._head = b""
        self._tail = b""
        self._events = 0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is none of it
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """The router closed it, or we did."""
        if not self.over.done():
            self._fail(f"the connection closed: {exc or self._head[:300]!r}")

    def _ask(self) -> None:
        self._head, self._tail, self._events = b"", b"", 0
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        if self._events == 0:
            self._head += data
            if b"data:" not in self._head:
                if self._head[9:12] not in (b"", b"200"):
                    self._fail(f"the answer is {self._head[:300]!r}")
                return
            self._seen.ttft_s.append(time.perf_counter() - self._asked_s)
            data = self._head
        at = data.rfind(ID)
        if at >= 0:
            sent = data[at + len(ID) : at + len(ID) + ID_DIGITS]
            if len(sent) == ID_DIGITS and sent.isdigit():
                self._seen.delay_s.append(1e-9 * (time.monotonic_ns() - int(sent)))
        joined = self._tail[-4:] + data
        self._events += joined.count(b"data:")
        self._tail = joined[-len(_END) :]
        if self._tail == _END:
            self._ended()

    def _ended(self) -> None:
        # One that writes answers anew may send more of them (LiteLLM does), none may send fewer.
        if self._events < EVENTS + 1:
            self._fail(f"{self._events} events, expected {EVENTS + 1}")
            return
        self._seen.completed += 1
        if time.perf_counter() < self._until_s:
            self._ask()
        else:
            self._close()

    def _fail(self, what: str) -> None:
        self._seen.failed += 1
        self._seen.first = self._seen.first or what
        self._close()

    def _close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        self._transport.close()


async def load(port: int, concurrency: int, duration_s: float, *, ramp_s: float = 0.2) -> Seen:
    """Keep `concurrency` streams open for this long, and wait for the last to end.

    Connections begin spread over `ramp_s`, so that they are not in step. One that fails stays closed.
    """
    seen = Seen()
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()
    clients: list[Client] = []
    for _ in range(concurrency):
        _, client = await loop.create_connection(
            lambda: Client(port, began_s + duration_s, seen), "127.0.0.1", port
        )
        clients.append(client)
        await asyncio.sleep(ramp_s / concurrency)
    await asyncio.wait([client.over for client in clients], timeout=duration_s + PATIENCE_S)
    late = sum(not client.over.done() for client in clients)
    if late:
        seen.failed += late
        seen.first = seen.first or f"no end of an answer within {PATIENCE_S:.0f} s"
    seen.elapsed_s = time.perf_counter() - began_s
    return seen
