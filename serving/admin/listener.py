"""The operators' listener: it opens before the public one and closes after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from steersman.serving.admin.app import create_admin_app, read_token
from steersman.serving.config import RouterSettings
from steersman.serving.connection import protocol_of
from steersman.serving.parts import Parts
from steersman.serving.reload import Reloader
from steersman.serving.sockets import listen


class _AdminServer(uvicorn.Server):
    """Leaves signals to the public server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


def operators_socket(settings: RouterSettings) -> socket.socket | None:
    """Where operators ask, opened before the workers are there; None if that is nowhere.

    Raises:
        ConfigError: as `admin_listening`.
    """
    admin = settings.admin
    if admin.port is None:
        return None
    read_token(admin.token_env, os.environ)
    return listen(admin.host, admin.port, "admin.")


@contextlib.asynccontextmanager
async def admin_listening(
    parts: Parts, reloader: Reloader, opened: socket.socket | None = None
) -> AsyncIterator[int | None]:
    """Serve operators while the block lasts; gives the port, None if none is configured. `opened` is
    the listening socket, if there is one already.

    Raises:
        ConfigError: the address is taken, or the token's variable is not set.
    """
    settings = parts.settings.admin
    if settings.port is None:
        yield None
        return
    config = uvicorn.Config(
        create_admin_app(parts, reloader),
        http=protocol_of(parts),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    with opened or listen(settings.host, settings.port, "admin.") as listener:
        server = _AdminServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="admin")
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await serving
