"""What is asked of the server that routers share, and what happens when it fails.

Whatever is asked of it has a short time to be answered. After a failure nobody asks for `retry_s`, so
that a server that is down costs those who wait just then their patience, and all others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import sha1
from typing import Any

from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.line import Line, open_line
from steersman.serving.shared.resp import BadReply, Reply, ReplyError, Word
from steersman.serving.shared.settings import SharedSettings
from steersman.traces.errors import ConfigError

logger = logging.getLogger("steersman.serving")

_MOST_PENDING = 10_000
"""Things to be written that wait; above it they are dropped, as if the server were down."""


_UNKNOWN_SCRIPT = "NOSCRIPT"


class SharedDown(Exception):  # noqa: N818 (a state of things)
    """The server does not answer: go on alone."""


class Script:
    """A Lua program that the server runs as one step."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        """By which the server knows it once it has seen it."""


class SharedServer:
    """Asks, within bounds. Lives on one event loop.

    Raises:
        ConfigError: the password's variable is not set.
    """

    def __init__(
        self,
        settings: SharedSettings,
        metrics: RouterMetrics,
        clock: Clock = time.monotonic,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._password = _password(settings, os.environ if environment is None else environment)
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self._down_until_s = 0.0
        self._up = True
        self._telling: set[asyncio.Task[None]] = set()
        metrics.shared_up.set(1)

    def name(self, *parts: str) -> str:
        """Of something stored there. The braces keep all in one slot of a cluster, so that one script
        may touch several."""
        return ":".join((f"{{{self._settings.prefix}}}", *parts))

    async def ask(self, *words: Word) -> Reply:
        """The reply to a command.

        Raises:
            SharedDown: there is none in time, or the server refuses.
        """
        if self._clock() < self._down_until_s:
            raise SharedDown
        try:
            line = self._line
            if line is None or not line.open:
                line = await self._connected()
            reply = await line.send(*words)
            if isinstance(reply, ReplyError) and reply.code != _UNKNOWN_SCRIPT:
                raise reply
        except (OSError, ReplyError, BadReply) as error:
            self._failed(error)
            raise SharedDown from None
        self._works()
        return reply

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Reply:
        """As `ask`, for a script; the server is sent its text only if it does not know it.

        Raises:
            SharedDown: as `ask`.
        """
        reply = await self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        if isinstance(reply, ReplyError):
            reply = await self.ask("EVAL", script.text, len(keys), *keys, *arguments)
        return reply

    def tell(self, *words: Word) -> None:
        """Write something, beside the way; what became of it is for the metrics."""
        self._beside(self.ask(*words))

    def tell_run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> None:
        """Run a script, beside the way."""
        self._beside(self.run(script, keys, arguments))

    async def settled(self) -> None:
        """All that was told has been answered, or will not be."""
        if self._telling:
            await asyncio.wait(tuple(self._telling))

    async def close(self) -> None:
        """Write what is to be written, and hang up."""
        await self.settled()
        if self._line is not None:
            self._line.end(ConnectionError())
            self._line = None

    def _beside(self, question: Coroutine[Any, Any, Reply]) -> None:
        if self._clock() < self._down_until_s or len(self._telling) >= _MOST_PENDING:
            question.close()
            self._metrics.shared_failures.inc()
            return
        task = asyncio.create_task(_ignoring_failure(question))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _connected(self) -> Line:
        """The one connection; whoever comes while it is being made waits for it."""
        async with self._opening:
            if self._clock() < self._down_until_s:
                raise ConnectionError
            if self._line is None or not self._line.open:
                s = self._settings
                self._line = await open_line(s.url, s.username, self._password, s.timeout_s)
            return self._line

    def _failed(self, error: Exception) -> None:
        self._metrics.shared_failures.inc()
        self._metrics.shared_up.set(0)
        self._down_until_s = self._clock() + self._settings.retry_s
        if self._up:
            self._up = False
            # By its kind alone: messages may hold addresses and what was sent.
            kind = error.code if isinstance(error, ReplyError) else type(error).__name__
            logger.warning("the shared server fails (%s); going on alone", kind)

    def _works(self) -> None:
        if not self._up:
            self._up = True
            self._metrics.shared_up.set(1)
            logger.info("the shared server answers again")


async def _ignoring_failure(question: Coroutine[Any, Any, Reply]) -> None:
    with contextlib.suppress(SharedDown):
        await question


def _password(settings: SharedSettings, environment: Mapping[str, str]) -> str:
    if not settings.password_env:
        return ""
    password = environment.get(settings.password_env, "")
    if not password:
        raise ConfigError(
            f"shared.password_env: environment variable '{settings.password_env}' is not set; "
            "set it to the server's password"
        )
    return password
