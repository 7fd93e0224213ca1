"""How workers ask each other: a pair of datagram sockets for each seat, made before they are forked.

Everybody may send to everybody, messages are whole or not there, and nothing waits: to a worker that
does not read, a message is lost, and whoever asked goes on without its answer. What has to last is not
sent but written where all can see it (`orders.py`); a message says to look.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import orjson

logger = logging.getLogger("steersman.serving")

MOST_BYTES = 60_000
"""Of a message."""

Message = dict[str, Any]
Handler = Callable[[], Awaitable[Message]]


class Wires:
    """Made before the workers are forked.

    Args:
        seats: how many workers may live at the same time.
    """

    def __init__(self, seats: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(seats)]
        self.inboxes = [ours for ours, _ in pairs]
        self.outboxes = [theirs for _, theirs in pairs]
        for end in (*self.inboxes, *self.outboxes):
            end.setblocking(False)
        self._memory = mmap.mmap(-1, 8 * seats)
        self.taken = np.frombuffer(self._memory, dtype=np.int64)
        """1 where a worker listens."""

    def close(self) -> None:
        """Of this process; others keep theirs."""
        for end in (*self.inboxes, *self.outboxes):
            end.close()


class Colleagues:
    """One worker's end. Lives on one event loop, from `listen` to `close`.

    Args:
        wires: of all workers.
        seat: this one's.
        handlers: what to do when asked, by the name of the question; they return what to answer.
    """

    def __init__(self, wires: Wires, seat: int, handlers: Mapping[str, Handler]) -> None:
        self._wires = wires
        self._seat = seat
        self._handlers = handlers
        self._numbers = count()
        self._asked: dict[int, dict[int, asyncio.Future[Message]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """From now on this worker is asked. What was sent to whoever sat here before is not for it."""
        inbox = self._wires.inboxes[self._seat]
        while _receive(inbox) is not None:
            pass
        asyncio.get_running_loop().add_reader(inbox.fileno(), self._on_mail)
        self._wires.taken[self._seat] = 1

    def close(self) -> None:
        """It is no longer asked."""
        self._wires.taken[self._seat] = 0
        asyncio.get_running_loop().remove_reader(self._wires.inboxes[self._seat].fileno())

    async def ask(self, question: str, within_s: float) -> list[Message | None]:
        """What every worker answers, this one first; None for each that does not, in this time."""
        others = [int(s) for s in np.flatnonzero(self._wires.taken) if s != self._seat]
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        answers = self._asked[number] = {seat: loop.create_future() for seat in others}
        try:
            for seat in others:
                self._send(seat, {"ask": question, "number": number, "seat": self._seat})
            own = await self._handlers[question]()
            if answers:
                await asyncio.wait(answers.values(), timeout=within_s)
        finally:
            del self._asked[number]
        return [own, *(f.result() if f.done() else None for f in answers.values())]

    def _send(self, seat: int, message: Message) -> None:
        packed = orjson.dumps(message)
        assert len(packed) <= MOST_BYTES
        try:
            self._wires.outboxes[seat].send(packed)
        except OSError as error:  # it does not read
            logger.warning("a worker is not reached: %s", type(error).__name__)

    def _on_mail(self) -> None:
        while (message := _receive(self._wires.inboxes[self._seat])) is not None:
            if "ask" in message:
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            waiting = self._asked.get(message["number"], {}).get(message["seat"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message["answer"])

    async def _answer(self, message: Message) -> None:
        try:
            answer = await self._handlers[message["ask"]]()
        except Exception as error:
            logger.error("%s: failed: %s: %s", message["ask"], type(error).__name__, error)
            return
        self._send(message["seat"], {"number": message["number"], "seat": self._seat, "answer": answer})


def _receive(inbox: socket.socket) -> Message | None:
    try:
        message: Message = orjson.loads(inbox.recv(MOST_BYTES))
    except (BlockingIOError, InterruptedError):
        return None
    return message
