"""Admission by limits: what a request will cost is taken at the door and settled when it is over.

The cost in tokens is the prompt and the *predicted* answer (its median, or `max_tokens` if that is
less): known before a token is made. When the answer has ended, the difference to what it really was is
charged or given back, so predictions decide when somebody waits and never how much they get.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steersman.serving.access.caller import Caller
from steersman.serving.access.settings import RateSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.limits.store import Ask, Bucket, LimitStore, Place, Verdict
from steersman.serving.metrics import RouterMetrics

Headers = list[tuple[bytes, bytes]]

_REQUESTS, _TOKENS, _CONCURRENT = "requests", "tokens", "concurrent"


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that was let in; `settle` must be told of its end."""

    ask: Ask
    tokens: float
    """That were taken."""
    headers: Headers
    """What the client is told of its limits, as OpenAI tells it."""


NO_GRANT = Grant(Ask("", (), ()), 0.0, [])
"""Of a request that nothing limits."""


class Limiter:
    """Holds callers to their limits."""

    def __init__(self, store: LimitStore, metrics: RouterMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def admit(self, caller: Caller, request_id: str, tokens: float) -> Grant:
        """Let in, or not.

        Args:
            caller: whose limits count: those of its key, and of its tenant over all keys.
            request_id: unique over all routers.
            tokens: of the prompt and the predicted answer.

        Raises:
            ApiError: 429, with the time after which it is worth another try.
        """
        if not caller.is_limited:
            return NO_GRANT
        ask = _ask(caller, request_id, tokens)
        if not ask.buckets and not ask.places:
            return NO_GRANT
        verdict = await self._store.take(ask)
        headers = _headers(ask, verdict)
        if not verdict.granted:
            raise self._refusal(ask, verdict, headers)
        return Grant(ask, tokens, headers)

    def settle(self, grant: Grant, tokens: float) -> None:
        """It is over, and came to so many tokens."""
        if grant is NO_GRANT:
            return
        extra = tokens - grant.tokens
        more = tuple(extra if bucket.name.endswith(_TOKENS) else 0.0 for bucket in grant.ask.buckets)
        self._store.settle(grant.ask, more)

    def _refusal(self, ask: Ask, verdict: Verdict, headers: Headers) -> ApiError:
        """Names the limit that has to be waited for the longest."""
        waits = list(zip((b.name for b in ask.buckets), verdict.waits_s, strict=True))
        waits += [
            (place.name, 1.0)  # nobody knows when one of them ends
            for place, taken in zip(ask.places, verdict.taken, strict=True)
            if taken >= place.most
        ]
        name, wait_s = max(waits, key=lambda wait: wait[1])
        scope, _, limit = name.rpartition(":")
        whose = "tenant" if scope.startswith("tenant") else "key"
        self._metrics.limited.labels(whose, limit).inc()
        what = f"{limit} per minute" if limit != _CONCURRENT else "concurrent requests"
        return ApiError(
            429,
            Code.RATE_LIMIT_EXCEEDED,
            f"the limit on {what} of this {'API key' if whose == 'key' else whose} is reached; "
            f"try again in {wait_s:.3g} s",
            kind=limit,
            retry_after_s=wait_s,
            headers=headers,
        )


def _ask(caller: Caller, request_id: str, tokens: float) -> Ask:
    buckets: list[Bucket] = []
    places: list[Place] = []
    for scope, name, rates in (
        ("key", caller.key_id, caller.rates),
        ("tenant", caller.tenant, caller.tenant_rates),
    ):
        buckets += _buckets(f"{scope}:{name}", rates, tokens)
        if rates.concurrent is not None:
            places.append(Place(f"{scope}:{name}:{_CONCURRENT}", rates.concurrent))
    return Ask(request_id, tuple(buckets), tuple(places))


def _buckets(owner: str, rates: RateSettings, tokens: float) -> Iterator[Bucket]:
    """They hold a minute's worth, as OpenAI's do, but at least one request."""
    if (per_minute := rates.requests_per_minute) is not None:
        yield Bucket(f"{owner}:{_REQUESTS}", max(per_minute, 1.0), per_minute / 60.0, 1.0)
    if (per_minute := rates.tokens_per_minute) is not None:
        yield Bucket(f"{owner}:{_TOKENS}", per_minute, per_minute / 60.0, tokens)


def _headers(ask: Ask, verdict: Verdict) -> Headers:
    """`x-ratelimit-*`: of the key or the tenant, whichever has less left."""
    headers: Headers = []
    for kind in (_REQUESTS, _TOKENS):
        known = [
            (level / bucket.capacity, level, bucket)
            for bucket, level in zip(ask.buckets, verdict.levels, strict=True)
            if bucket.name.endswith(kind)
        ]
        if known:
            _, level, bucket = min(known, key=lambda entry: entry[0])
            headers += _told(kind, bucket, level)
    return headers


def _told(kind: str, bucket: Bucket, level: float) -> Sequence[tuple[bytes, bytes]]:
    full_in_s = (bucket.capacity - level) / bucket.rate_per_s
    values = {
        "limit": f"{math.floor(bucket.capacity)}",
        "remaining": f"{max(math.floor(level), 0)}",
        "reset": duration(full_in_s),
    }
    return [(f"x-ratelimit-{name}-{kind}".encode(), text.encode()) for name, text in values.items()]


def duration(seconds: float) -> str:
    """As OpenAI writes it: `12ms`, `1.5s`, `6m0s`, `1h2m3s`."""
    if seconds < 1.0:
        return f"{math.ceil(1000.0 * seconds)}ms"
    if seconds < 60.0:
        return f"{math.ceil(1000.0 * seconds) / 1000.0:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + f"{minutes}m{rest}s"
