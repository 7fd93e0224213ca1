"""Listening sockets."""

from __future__ import annotations

import socket

from steersman.traces.errors import ConfigError

BACKLOG = 4096
"""Connections that wait to be accepted."""


def listen(host: str, port: int, section: str = "") -> socket.socket:
    """A listening socket; `section` has the keys that name it.

    Raises:
        ConfigError: the address is taken, or not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); "
            f"give another '{section}host' or '{section}port'"
        ) from None
