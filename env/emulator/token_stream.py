"""The way of one answer's tokens from the engine to the connection that sends them."""

from __future__ import annotations

import asyncio
from enum import StrEnum


class Ending(StrEnum):
    """Why a stream gives no more tokens before it is complete."""

    CLIENT_GONE = "client_gone"
    BROKEN = "broken"
    """The engine stopped, or a fault was asked for."""


class TokenStream:
    """Counts tokens in and out. One task takes; the driver, in the same loop, gives."""

    __slots__ = (
        "_ending",
        "_interval",
        "_taken",
        "_waiter",
        "cached_tokens",
        "last_token_s",
        "produced",
        "submitted_s",
        "total",
    )

    def __init__(self, total: int, submitted_s: float, *, interval: int = 1) -> None:
        """`interval`: the taker is woken by the first token, then by every so many, and by the last;
        0: by the last alone."""
        self.total = total
        """Tokens the answer will have."""
        self.submitted_s = submitted_s
        """Engine time."""
        self._interval = interval
        self.last_token_s = submitted_s
        self.produced = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache; known with the first token."""
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ending: Ending | None = None

    @property
    def complete(self) -> bool:
        """Whether the engine has produced everything."""
        return self.produced >= self.total

    def give(self) -> None:
        """One more token."""
        self.produced += 1
        produced = self.produced
        due = produced == 1 or produced - self._taken >= self._interval
        if (due and self._interval) or produced >= self.total:
            self._wake()

    def end(self, reason: Ending) -> None:
        """No more tokens will come."""
        if self._ending is None:
            self._ending = reason
            self._wake()

    async def take(self) -> tuple[int, int]:
        """(position of the first, number) of the tokens since the last call; waits for at least one.

        A reader that was slow gets several at once. Number 0: the stream ended early.
        """
        while self.produced == self._taken and self._ending is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._ending is not None:
            return self._taken, 0
        first, self._taken = self._taken, self.produced
        return first, self.produced - first

    async def wait_complete(self) -> bool:
        """Wait for the last token; False if the stream ended early."""
        while not self.complete:
            _, count = await self.take()
            if count == 0:
                return False
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
