"""The connection to the server that routers share, and what happens when it fails.

Whatever is asked of it has a short time to be answered. After a failure nobody asks for `retry_s`, so
that a server that is down costs one request its patience and the others nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.settings import SharedSettings
from steersman.traces.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")
logger = logging.getLogger("steersman.serving")

_MOST_CONNECTIONS = 64
_MOST_PENDING = 10_000
"""Things to be written that wait; above it they are dropped, as if the server were down."""


class SharedServer:
    """Asks, within bounds.

    Raises:
        ConfigError: the password's variable is not set.
        ModuleNotFoundError: the client library is not installed.
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
        self._down_until_s = 0.0
        self._up = True
        self._pending: set[asyncio.Task[None]] = set()
        self.redis = _client(settings, os.environ if environment is None else environment)
        metrics.shared_up.set(1)

    def name(self, *parts: str) -> str:
        """Of something stored there. The braces keep all in one slot of a cluster, so that one script
        may touch several."""
        return ":".join((f"{{{self._settings.prefix}}}", *parts))

    async def ask(self, ask: Callable[[Redis], Awaitable[T]]) -> T | None:
        """The answer, or None if there is none in time."""
        if self._clock() < self._down_until_s:
            return None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                answer = await ask(self.redis)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of many libraries' kinds: none of them may end a request
            self._failed(error)
            return None
        self._works()
        return answer

    def tell(self, tell: Callable[[Redis], Awaitable[object]]) -> None:
        """Write something, beside the way."""
        if self._clock() < self._down_until_s or len(self._pending) >= _MOST_PENDING:
            self._metrics.shared_failures.inc()
            return
        task = asyncio.create_task(self._tell(tell))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def close(self) -> None:
        """Write what is to be written, and hang up."""
        if self._pending:
            await asyncio.wait(tuple(self._pending), timeout=1.0)
        await self.redis.aclose()

    async def _tell(self, tell: Callable[[Redis], Awaitable[object]]) -> None:
        await self.ask(tell)

    def _failed(self, error: Exception) -> None:
        self._metrics.shared_failures.inc()
        self._metrics.shared_up.set(0)
        self._down_until_s = self._clock() + self._settings.retry_s
        if self._up:
            self._up = False
            # By its kind alone: messages of the library may hold addresses and commands.
            logger.warning("the shared server fails (%s); going on alone", type(error).__name__)

    def _works(self) -> None:
        if not self._up:
            self._up = True
            self._metrics.shared_up.set(1)
            logger.info("the shared server answers again")


def _client(settings: SharedSettings, environment: Mapping[str, str]) -> Redis:
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    password = None
    if settings.password_env:
        password = environment.get(settings.password_env)
        if not password:
            raise ConfigError(
                f"shared.password_env: environment variable '{settings.password_env}' is not set; "
                "set it to the server's password"
            )
    pool = BlockingConnectionPool.from_url(
        settings.url,
        username=settings.username or None,
        password=password,
        max_connections=_MOST_CONNECTIONS,
        timeout=settings.timeout_s,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)
