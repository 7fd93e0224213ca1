"""An answer as it comes: filled by the connection, emptied by whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from steersman.serving.wire.errors import WireError


class Response:
    """One answer. Belongs to one event loop; only one task may wait for it at a time.

    Args:
        resume: called when what had come was taken, so that more may come.
        give_up: ends the connection, if the answer has not ended.
    """

    __slots__ = (
        "_error",
        "_give_up",
        "_loop",
        "_pieces",
        "_resume",
        "_sink",
        "_waiter",
        "begun",
        "buffered",
        "complete",
        "raw_headers",
        "status",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resume: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._resume = resume
        self._give_up = give_up
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.begun = False
        """Whether the status and the headers are here."""
        self.complete = False
        """Whether the last byte is here."""
        self.buffered = 0
        """Bytes of the body that are here and not taken."""
        self._pieces: list[bytes] = []
        self._error: WireError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None

    def header(self, name: bytes) -> str:
        """The first header of this name (in lower case), as text; empty if there is none."""
        for key, value in self.raw_headers:
            if key == name:
                return value.decode("latin-1").strip()
        return ""

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    @property
    def at_end(self) -> bool:
        """Whether all of it was taken."""
        return self.complete and not self._pieces

    def take(self) -> bytes:
        """What is here of the body, in one piece; empty if nothing is."""
        pieces = self._pieces
        if not pieces:
            return b""
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.buffered = 0
        self._resume()
        return taken

    async def read_some(self) -> bytes:
        """The next bytes of the body, as soon as there are any; empty at the end.

        Raises:
            WireError: it broke, and what came before was taken.
        """
        while True:
            if self._pieces:
                return self.take()
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._news()

    async def pour(self, sink: Callable[[bytes], bool]) -> None:
        """Hand each piece to `sink` as it comes, without waking this task, for as long as that is True;
        what came since it was False, or together with the end, is left to `read_some`. So is what is
        here already, and the news that the answer has ended or broken.

        Raises:
            Exception: what `sink` raises.
        """
        if self._pieces or self.complete or self._error is not None:
            return
        self._sink = sink
        try:
            await self._news()
        finally:
            self._sink = None

    async def has_body(self) -> bool:
        """Return once `read_some` need not wait; False: the end is here, with nothing before it.

        Raises:
            WireError: as `read_some`.
        """
        while not self._pieces and not self.complete:
            if self._error is not None:
                raise self._error
            await self._news()
        return bool(self._pieces)

    async def read_up_to(self, limit: int) -> bytes:
        """The whole body, or its first bytes, at least `limit`, if it is longer.

        Raises:
            WireError: as `read_some`.
        """
        pieces: list[bytes] = []
        size = 0
        while size < limit and (piece := await self.read_some()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    async def headers(self) -> None:
        """Return once `begun`.

        Raises:
            WireError: it broke before.
        """
        while not self.begun:
            if self._error is not None:
                raise self._error
            await self._news()

    def close(self) -> None:
        """Nobody will read on. An answer that has not ended loses its connection, which ends the
        replica's work on it."""
        if not self.complete:
            self._give_up()

    def put(self, piece: bytes) -> None:
        """For the connection: another piece of the body."""
        self._pieces.append(piece)
        self.buffered += len(piece)

    def fail(self, error: WireError) -> None:
        """For the connection: there is no more to come."""
        if not self.complete and self._error is None:
            self._error = error
            self.wake()

    def wake(self) -> None:
        """For the connection: there is news."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        sink, pieces = self._sink, self._pieces
        if sink is not None and pieces and not self.complete:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self.buffered = 0  # the connection has not been paused: it looks afterwards
            try:
                if sink(piece):
                    return
            except Exception as error:  # it is the task's, not the connection's
                waiter.set_exception(error)
                return
        waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
