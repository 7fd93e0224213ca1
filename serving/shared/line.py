"""One connection to the shared server. Commands are written as they come and answered in their order, so
one connection carries all of them at once."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast
from urllib.parse import unquote, urlsplit

from steersman.serving.shared.resp import BadReply, Replies, Reply, ReplyError, Word, command

PORT = 6379


class Line(asyncio.Protocol):
    """From `connection_made` to `connection_lost`.

    Args:
        patience_s: a command that is not answered in this time ends the connection, and so all others on
            it: whoever waits for a server that hangs waits so long and no longer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._replies = Replies()
        self._asked: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception = ConnectionError()
        self.open = False

    @property
    def pending(self) -> int:
        """Commands that are not answered."""
        return len(self._asked)

    def send(self, *words: Word) -> asyncio.Future[Reply]:
        """Write a command; the future is its reply, or fails with what ended the connection."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if not self.open:
            future.set_exception(ConnectionError())
            return future
        self._transport.write(command(*words))
        self._asked.append((future, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s, self._on_timer)
        return future

    def end(self, error: Exception) -> None:
        """Hang up; everybody who waits is told why."""
        self._error = error
        self.open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Replies, in the order of the commands."""
        try:
            replies = self._replies.feed(data)
        except BadReply as error:
            self.end(error)
            return
        for reply in replies:
            if not self._asked:
                self.end(BadReply())
                return
            future, _ = self._asked.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._asked:
            future, _ = self._asked.popleft()
            if not future.done():
                future.set_exception(exc or self._error)

    def _on_timer(self) -> None:
        """The oldest command has waited for long enough, or another one is the oldest now."""
        self._timer = None
        if not self._asked:
            return
        left_s = self._asked[0][1] + self._patience_s - self._loop.time()
        if left_s <= 0.0:
            self.end(TimeoutError())
        else:
            self._timer = self._loop.call_later(left_s, self._on_timer)


async def open_line(url: str, username: str, password: str, patience_s: float) -> Line:
    """Connect, say who we are, choose the database.

    Raises:
        OSError: it cannot be reached (TimeoutError: in time).
        ReplyError: it refuses us.
    """
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    line = Line(loop, patience_s)
    async with asyncio.timeout(patience_s):
        if parts.scheme == "unix":
            await loop.create_unix_connection(lambda: line, unquote(parts.path))
        else:
            secure = ssl.create_default_context() if parts.scheme == "rediss" else None
            host, port = parts.hostname or "localhost", parts.port or PORT
            await loop.create_connection(lambda: line, host, port, ssl=secure)
    greetings: list[tuple[Word, ...]] = []
    if password:
        greetings.append(("AUTH", username, password) if username else ("AUTH", password))
    database = parts.path.strip("/") if parts.scheme != "unix" else ""
    if database:
        greetings.append(("SELECT", database))
    try:
        for reply in await asyncio.gather(*(line.send(*words) for words in greetings)):
            if isinstance(reply, ReplyError):
                raise reply
    except BaseException as error:
        line.end(error if isinstance(error, Exception) else ConnectionError())
        raise
    return line
