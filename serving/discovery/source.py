"""A place where replicas are found."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from steersman.serving.backend_settings import BackendSettings, ReplicaSettings
from steersman.traces.errors import SteersmanError

Tell = Callable[[Sequence[BackendSettings]], None]
"""Takes all replicas a source names now."""


class DiscoveryError(SteersmanError):
    """A source cannot be read; what it named before stays."""


def backend_at(
    common: ReplicaSettings, scheme: str, host: str, port: int, path: str, name: str = ""
) -> BackendSettings:
    """The replica at an address that was found.

    Args:
        common: what all replicas of the source have in common.
        scheme: http or https.
        host: a name or an address, IPv6 without brackets.
        port: of it.
        path: prefix of its paths.
        name: its id; empty for host:port.

    Raises:
        DiscoveryError: what was found is no address.
    """
    values = {key: getattr(common, key) for key in type(common).model_fields}
    try:
        return BackendSettings(url=f"{scheme}://{_bracketed(host)}:{port}{path}", id=name, **values)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise DiscoveryError(f"{host[:100]!r} port {port}: {reason}; look at what answers") from None


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host.rstrip(".")
