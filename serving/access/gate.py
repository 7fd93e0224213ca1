"""The door: a request's key becomes its caller, or the request ends here."""

from __future__ import annotations

import time
from collections.abc import Iterable

from steersman.serving.access.caller import ANYBODY, NO_RATES, Caller
from steersman.serving.access.secrets import NO_KEY, KeyHash, id_of, parse_hash
from steersman.serving.access.settings import KeyFile, KeySettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.loops import Clock
from steersman.traces.schema import Priority

CREDENTIALS = frozenset((b"authorization", b"api-key", b"x-api-key"))
"""Headers that may hold a key: OpenAI's, Azure's, Anthropic's. With keys of our own none travels on."""

RawHeaders = Iterable[tuple[bytes, bytes]]


class Gate:
    """Knows the keys; `set_keys` replaces all of them at once.

    Args:
        keys: None lets everybody in.
        wall_clock: Unix time, for keys that expire.
    """

    def __init__(self, keys: KeyFile | None = None, wall_clock: Clock = time.time) -> None:
        self._wall_clock = wall_clock
        self._entries: dict[str, tuple[KeySettings, KeyHash, Caller]] | None = None
        if keys is not None:
            self.set_keys(keys)

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self._entries is None

    @property
    def size(self) -> int:
        """How many keys there are."""
        return len(self._entries or ())

    def set_keys(self, file: KeyFile) -> None:
        """From now on these keys count, and no others."""
        self._entries = {
            key.id: (key, parse_hash(key.hash.get_secret_value()), _caller(key, file))
            for key in file.keys
        }

    def caller(self, headers: RawHeaders) -> Caller:
        """Whose request this is.

        Args:
            headers: the request's, names in lower case.

        Raises:
            ApiError: 401, there is no key, or not one that counts.
        """
        if self._entries is None:
            return ANYBODY
        key = _key_in(headers)
        if not key:
            raise _unauthorized(
                Code.MISSING_API_KEY, "no API key; send the header 'Authorization: Bearer KEY'"
            )
        entry = self._entries.get(id_of(key))
        known = (entry[1] if entry is not None else NO_KEY).matches(key)
        if entry is None or not known or entry[0].disabled:
            raise _unauthorized(Code.INVALID_API_KEY, "this API key is not valid; check it")
        if entry[0].has_expired(self._wall_clock()):
            raise _unauthorized(Code.EXPIRED_API_KEY, "this API key has expired; ask for a new one")
        return entry[2]

    def passes_on(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What of the headers a replica may see: a key of ours is nobody else's business."""
        if self._entries is None:
            return headers
        return [(name, value) for name, value in headers if name not in CREDENTIALS]


def _key_in(headers: RawHeaders) -> str:
    """The first key; '' if there is none."""
    for name, value in headers:
        if name in CREDENTIALS:
            text = value.decode("latin-1").strip()
            if name == b"authorization":
                scheme, _, text = text.partition(" ")
                if scheme.lower() != "bearer":
                    continue
            return text.strip()
    return ""


def _caller(key: KeySettings, file: KeyFile) -> Caller:
    return Caller(
        key_id=key.id,
        tenant=key.tenant,
        models=key.models,
        top_priority=Priority(key.top_priority),
        rates=key.limits or file.defaults,
        tenant_rates=file.tenants.get(key.tenant, NO_RATES) if key.tenant else NO_RATES,
    )


def _unauthorized(code: Code, message: str) -> ApiError:
    return ApiError(401, code, message, headers=((b"www-authenticate", b"Bearer"),))
