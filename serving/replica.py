"""One backend: where it is, how it is reached, what it serves, how it is."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from steersman.serving.backend_settings import BackendSettings, TlsSettings
from steersman.serving.breaker import Breaker
from steersman.serving.config import HealthSettings, TimeoutSettings
from steersman.serving.health import HealthState
from steersman.serving.pulse import Pulse
from steersman.serving.splice import set_member
from steersman.serving.standing import Standing
from steersman.serving.trust_settings import BreakerSettings
from steersman.traces.errors import ConfigError
from steersman.traces.schema import HardwareProfile, Priority


class Replica:
    """One backend.

    Raises:
        ConfigError: a variable that should hold its API key is not set, or a certificate is not one.
    """

    def __init__(
        self,
        index: int,
        settings: BackendSettings,
        profile: HardwareProfile,
        health: HealthSettings,
        breaker: BreakerSettings,
        environment: Mapping[str, str],
        contexts: dict[TlsSettings, ssl.SSLContext],
    ) -> None:
        self.index = index
        """Its row in the fleet's state."""
        self.settings = settings
        self.id = settings.replica_id
        self.url = settings.url
        self.profile = profile
        self.health = HealthState(health.failures, health.successes)
        self.standing = Standing(Breaker(breaker))
        self.models = settings.models
        self.cards: dict[str, dict[str, Any]] = {}
        """What the backend says of each of its models, if it was asked; by our names."""
        self.adapters: frozenset[str] = frozenset()
        """LoRA adapters in its accelerators' memory, where the engine tells; its own names."""
        self.pulse = Pulse()
        self.waiting: set[Callable[[], None]] = set()
        """For each request that is here and has no first byte yet: sends it elsewhere."""
        self.resting_until_s = 0.0
        """It asked, with Retry-After, to be left in peace until then."""
        self.authorization = _authorization(settings, environment)
        self.tls: ssl.SSLContext | None = None
        """None for a plain connection."""
        if is_secure(settings):
            if settings.tls not in contexts:  # reading the system's authorities takes a while
                contexts[settings.tls] = tls_context(settings)
            self.tls = contexts[settings.tls]
        self.server_name = settings.tls.server_name or None
        self._public = {own: name for name, own in settings.names.items()}

    def __repr__(self) -> str:
        """Without the key."""
        return f"Replica({self.id!r}, {self.url!r})"

    def connects_within_s(self, timeouts: TimeoutSettings) -> float:
        """Patience with a new connection to it."""
        return self.settings.connect_s or timeouts.connect_s

    def answers_within_s(self, timeouts: TimeoutSettings) -> float:
        """Patience from the sending of a request, which may need a connection, to the first byte."""
        return self.connects_within_s(timeouts) + (self.settings.first_byte_s or timeouts.first_byte_s)

    def take_cards(self, cards: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """Remember what it lists; returns the models it serves, by our names."""
        self.cards = {self._public.get(str(card["id"]), str(card["id"])): dict(card) for card in cards}
        return self.settings.models or tuple(self.cards)

    def body_for(self, body: bytes, asked: str, model: str, priority: Priority | None) -> bytes:
        """The client's body as this replica must get it: the same, but for its own name of the model and
        the engine's priority, where those are configured.

        Args:
            body: the client's.
            asked: the model it names; may be empty.
            model: the model of the pool.
            priority: of the request; None where the engine has no use for it.
        """
        own = self.settings.names.get(model, model)
        if asked and asked != own:
            body = set_member(body, "model", orjson.dumps(own))
        order = self.settings.engine_priority
        if order != "none" and priority is not None:
            level = priority if order == "lower-first" else max(Priority) - priority
            body = set_member(body, "priority", str(int(level)).encode())
        return body


def _authorization(settings: BackendSettings, environment: Mapping[str, str]) -> str:
    if not settings.api_key_env:
        return ""
    key = environment.get(settings.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"backend '{settings.replica_id}': environment variable '{settings.api_key_env}' "
            "(api_key_env) is not set; set it to the backend's API key"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"backend '{settings.replica_id}': the key in '{settings.api_key_env}' (api_key_env) "
            "has characters that cannot be in a header; check it"
        )
    return f"Bearer {key}"


def is_secure(settings: BackendSettings) -> bool:
    """Whether it is reached by TLS."""
    return urlsplit(settings.url).scheme == "https"


def tls_context(settings: BackendSettings) -> ssl.SSLContext:
    """Read the certificates that a backend names.

    Raises:
        ConfigError: they cannot be used.
    """
    tls: TlsSettings = settings.tls
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        raise ConfigError(
            f"backend '{settings.replica_id}': tls files {files} cannot be used "
            f"({error.strerror or error}); name PEM files that exist"
        ) from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
