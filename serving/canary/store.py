"""Where the state of a canary is kept: a file of one machine, or the server that routers share.

Both offer one thing: change the state as one step, whoever else wants to. The change is a function and
may be called again on another state, where somebody was faster.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from steersman.agents.served_directories import write_atomically
from steersman.serving.canary.state import CanaryState, read_state
from steersman.serving.shared.server import Script, SharedDown, SharedServer
from steersman.traces.errors import ArtifactError

logger = logging.getLogger("steersman.serving")

T = TypeVar("T")
Change = Callable[[CanaryState], T]
"""Changes the state in place; what it returns is handed on."""

_ATTEMPTS = 20
_SWAP = Script(
    """
local known = redis.call('GET', KEYS[1])
if (known or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
)


class StoreDown(Exception):  # noqa: N818 (a state of things)
    """The state cannot be changed now: go on with what is known."""


class CanaryStore(Protocol):
    """Keeps the state."""

    async def update(self, change: Change[T]) -> tuple[CanaryState, T]:
        """Change the state as one step.

        Returns:
            The state as it is now, and what the change returned.

        Raises:
            StoreDown: it could not be read or written.
        """
        ...

    async def last_known(self) -> CanaryState:
        """To begin with: whatever can be read, an idle one if nothing can. Changes nothing."""
        ...


class FileStore:
    """A `CanaryStore` in a file; any number of processes of one machine may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def update(self, change: Change[T]) -> tuple[CanaryState, T]:
        """Change the state as one step; waits for a process that is at it."""
        return await asyncio.to_thread(self.update_now, change)

    def update_now(self, change: Change[T]) -> tuple[CanaryState, T]:
        """As `update`, in the caller's thread."""
        try:
            with self._locked():
                before = self._read()
                state = self._parsed(before)
                result = change(state)
                after = changed(state, before)
                if after is not None:
                    write_atomically(self.path, after)
                return state, result
        except (OSError, ArtifactError) as error:
            raise StoreDown(str(error)) from None

    async def keep(self, state: CanaryState) -> None:
        """Write it as it is.

        Raises:
            StoreDown: it cannot be written.
        """
        try:
            await asyncio.to_thread(write_atomically, self.path, state.to_json())
        except ArtifactError as error:
            raise StoreDown(str(error)) from None

    async def last_known(self) -> CanaryState:
        """What the file says; nothing is locked."""
        try:
            return read_state(await asyncio.to_thread(self._read))
        except (OSError, ValueError):
            return CanaryState()

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _parsed(self, data: bytes | None) -> CanaryState:
        try:
            return read_state(data)
        except ValueError as error:
            aside = self.path.with_suffix(self.path.suffix + ".bad")
            logger.error("%s is damaged (%s); it is set aside as %s", self.path, error, aside.name)
            with suppress(OSError):
                self.path.rename(aside)
            return CanaryState()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(self.path.suffix + ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class SharedStore:
    """A `CanaryStore` on the server that routers share.

    Args:
        server: the same for all routers.
        copy: a file of this machine in which the newest state is kept too: from it a router that starts
            while the server is away goes on. None for no copy.
    """

    def __init__(self, server: SharedServer, copy: FileStore | None = None) -> None:
        self._server = server
        self._copy = copy

    async def update(self, change: Change[T]) -> tuple[CanaryState, T]:
        """Change the state as one step: again, while others were faster."""
        name = self._server.name("canary")
        try:
            for _ in range(_ATTEMPTS):
                reply = await self._server.ask("GET", name)
                before = reply if isinstance(reply, bytes) else b""
                state = _read_shared(before)
                result = change(state)
                after = changed(state, before)
                if after is None or await self._server.run(_SWAP, [name], [before, after]) == 1:
                    await self._keep(state)
                    return state, result
        except SharedDown:
            raise StoreDown("the shared server does not answer") from None
        raise StoreDown("other routers change the state all the time")

    async def last_known(self) -> CanaryState:
        """Of the copy, while the server is away; an idle one without any."""
        return CanaryState() if self._copy is None else await self._copy.last_known()

    async def _keep(self, state: CanaryState) -> None:
        if self._copy is None:
            return

        try:
            await self._copy.keep(state)
        except StoreDown as error:
            logger.warning("the copy of the canary's state cannot be written: %s", error)


def changed(state: CanaryState, before: bytes | None) -> bytes | None:
    """What to write in place of `before`; None if that says the same."""
    if state.to_json() == before:
        return None
    state.revision += 1
    return state.to_json()


def _read_shared(data: bytes) -> CanaryState:
    try:
        return read_state(data)
    except ValueError as error:
        logger.error("the canary's state on the shared server is damaged (%s); begun anew", error)
        return CanaryState()
