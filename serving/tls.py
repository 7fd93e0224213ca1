"""TLS towards clients: the certificate, and the loop that takes up a renewed one."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from steersman.traces.errors import ConfigError
from steersman.traces.settings import Settings

logger = logging.getLogger("steersman.serving")


class ListenerTlsSettings(Settings):
    """The router's own certificate, towards clients."""

    cert_file: str = Field(
        default="", description="PEM file with the certificate and its chain; '' for plain HTTP."
    )
    key_file: str = Field(default="", description="PEM file with its key; '' if cert_file holds it too.")
    client_ca_file: str = Field(
        default="",
        description="PEM file of authorities: clients need a certificate of theirs; '': none needed.",
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="Oldest TLS that is spoken.")
    interval_s: float = Field(
        default=10.0, gt=0, le=3600, description="Time between two looks for a renewed certificate."
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if (self.key_file or self.client_ca_file) and not self.cert_file:
            raise ValueError("has files without a cert_file; name the certificate too")
        return self

    @property
    def files(self) -> tuple[Path, ...]:
        """All files there are to read."""
        names = (self.cert_file, self.key_file, self.client_ca_file)
        return tuple(Path(name) for name in names if name)


class ListenerTls:
    """The context that connections are made with, and its control loop: new connections get the new
    certificate, those there are keep theirs. A renewed pair that does not fit changes nothing.

    Raises:
        ConfigError: the files cannot be used, at the start.
    """

    name = "certificate"

    def __init__(self, settings: ListenerTlsSettings) -> None:
        self._settings = settings
        self._seen = self._signature()
        self.context = self._load()

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Read the files if they are others than at the last look."""
        signature = await asyncio.to_thread(self._signature)
        if signature != self._seen:
            self._seen = signature
            try:
                await asyncio.to_thread(self._load)  # apart, to see whether they fit
            except ConfigError as error:
                logger.warning("the former certificate stays: %s", error)
            else:
                self._take_up(self.context)
                logger.info("a renewed certificate from %s", self._settings.cert_file)
        return self._settings.interval_s

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
        context.minimum_version = versions[self._settings.min_version]
        context.set_alpn_protocols(["http/1.1"])
        try:
            self._take_up(context)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, self._settings.files))
            raise ConfigError(
                f"tls: {files} cannot be used ({error.strerror or error}); name PEM files that fit"
            ) from None
        return context

    def _take_up(self, context: ssl.SSLContext) -> None:
        tls = self._settings
        # A key with a passphrase would be asked for at the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file or None, password=lambda: "")
        if tls.client_ca_file:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(tls.client_ca_file)

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_signature(path) for path in self._settings.files)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
