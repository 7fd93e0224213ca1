"""The books of limits of several routers, on the server they share.

One script takes all that a request asks for, in one round trip, by the server's own clock. While the
server does not answer, each router keeps books of its own: nobody is refused because of it, and limits
hold per router instead of over all.
"""

from __future__ import annotations

import time
from typing import Any

from steersman.serving.limits.memory import MemoryLimits
from steersman.serving.limits.store import LEASE_S, Ask, Verdict
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.resp import Reply, Word
from steersman.serving.shared.server import Script, SharedDown, SharedServer

_COMMON = """
local now = tonumber(ARGV[1])
if now < 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) + tonumber(t[2]) / 1e6
end
local buckets, places = tonumber(ARGV[2]), tonumber(ARGV[3])
local function number(x) return string.format('%.17g', x) end
local function level(i)
  local capacity, rate = tonumber(ARGV[3 * i + 3]), tonumber(ARGV[3 * i + 4])
  local known = redis.call('HMGET', KEYS[i], 'level', 'at')
  if not known[1] then return capacity end
  local since = math.max(now - tonumber(known[2]), 0)
  return math.min(capacity, tonumber(known[1]) + since * rate)
end
local function keep(i, left)
  local capacity, rate = tonumber(ARGV[3 * i + 3]), tonumber(ARGV[3 * i + 4])
  redis.call('HSET', KEYS[i], 'level', number(left), 'at', number(now))
  redis.call('EXPIRE', KEYS[i], math.ceil((capacity - left) / rate) + 1)
end
"""
# Arguments: now (negative: the server's), buckets, places, request, lease, then per bucket capacity,
# rate and cost, then per place how many there are. Keys: the buckets, the places.
_TAKE = Script(
    _COMMON
    + """
local granted, levels, waits, taken = 1, {}, {}, {}
for i = 1, buckets do
  local now_there, cost = level(i), tonumber(ARGV[3 * i + 5])
  local wait = math.max(math.min(cost, tonumber(ARGV[3 * i + 3])) - now_there, 0)
  wait = wait / tonumber(ARGV[3 * i + 4])
  levels[i], waits[i] = now_there, wait
  if wait > 0 then granted = 0 end
end
for i = 1, places do
  local place = KEYS[buckets + i]
  redis.call('ZREMRANGEBYSCORE', place, '-inf', number(now))
  taken[i] = redis.call('ZCARD', place)
  if taken[i] >= tonumber(ARGV[5 + 3 * buckets + i]) then granted = 0 end
end
if granted == 1 then
  for i = 1, buckets do
    levels[i] = levels[i] - tonumber(ARGV[3 * i + 5])
    keep(i, levels[i])
  end
  for i = 1, places do
    redis.call('ZADD', KEYS[buckets + i], number(now + tonumber(ARGV[5])), ARGV[4])
    redis.call('EXPIRE', KEYS[buckets + i], math.ceil(tonumber(ARGV[5])) + 1)
    taken[i] = taken[i] + 1
  end
end
for i = 1, buckets do levels[i], waits[i] = number(levels[i]), number(waits[i]) end
return {granted, levels, waits, taken}
"""
)
# As above, with what is to be charged in place of the costs.
_SETTLE = Script(
    _COMMON
    + """
for i = 1, buckets do
  keep(i, math.min(level(i) - tonumber(ARGV[3 * i + 5]), tonumber(ARGV[3 * i + 3])))
end
for i = 1, places do redis.call('ZREM', KEYS[buckets + i], ARGV[4]) end
return 1
"""
)


class SharedLimits:
    """A `LimitStore` that falls back on books of its own.

    Args:
        server: which all routers share.
        metrics: count what had to be decided alone.
        clock: of the router's own books.
        server_clock: in place of the server's, so that a test can tell the time.
    """

    def __init__(
        self,
        server: SharedServer,
        metrics: RouterMetrics,
        clock: Clock,
        server_clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._server_clock = server_clock
        self._alone = MemoryLimits(clock)
        self._granted_alone: set[str] = set()
        self._held: dict[str, tuple[str, ...]] = {}

    async def take(self, ask: Ask) -> Verdict:
        """Grant all or nothing; alone, if the server does not answer."""
        keys, arguments = self._words(ask, tuple(bucket.cost for bucket in ask.buckets))

        try:
            verdict = _verdict(await self._server.run(_TAKE, keys, arguments))
        except SharedDown:
            self._metrics.limits_alone.inc()
            verdict = await self._alone.take(ask)
            if verdict.granted:
                self._granted_alone.add(ask.request_id)
            return verdict
        if verdict.granted and ask.places:
            self._held[ask.request_id] = tuple(keys[len(ask.buckets) :])
        return verdict

    def settle(self, ask: Ask, more: tuple[float, ...]) -> None:
        """In the books in which it was granted."""
        if ask.request_id in self._granted_alone:
            self._granted_alone.discard(ask.request_id)
            self._alone.settle(ask, more)
            return
        self._held.pop(ask.request_id, None)
        keys, arguments = self._words(ask, more)
        self._server.tell_run(_SETTLE, keys, arguments)

    def renew(self) -> None:
        """The places of requests that still run stay theirs."""
        now_s = time.time() if self._server_clock is None else self._server_clock()
        for request_id, names in self._held.items():
            for name in names:
                self._server.tell("ZADD", name, "XX", now_s + LEASE_S, request_id)
                self._server.tell("EXPIRE", name, int(LEASE_S) + 1)

    def _words(self, ask: Ask, amounts: tuple[float, ...]) -> tuple[list[str], list[Word]]:
        """Keys and arguments of a script."""
        names = (*(bucket.name for bucket in ask.buckets), *(place.name for place in ask.places))
        now_s = -1.0 if self._server_clock is None else self._server_clock()
        arguments: list[Word] = [
            now_s,
            len(ask.buckets),
            len(ask.places),
            ask.request_id,
            LEASE_S,
        ]
        for bucket, amount in zip(ask.buckets, amounts, strict=True):
            arguments += [bucket.capacity, bucket.rate_per_s, float(amount)]
        arguments += [place.most for place in ask.places]
        return [self._server.name("limit", name) for name in names], arguments


def _verdict(reply: Reply) -> Verdict:
    """What the script answered."""
    answer: Any = reply
    granted, levels, waits_s, taken = answer
    return Verdict(
        tuple(map(float, levels)),
        tuple(map(int, taken)),
        granted=bool(granted),
        waits_s=() if granted else tuple(map(float, waits_s)),
    )


class LeaseRenewal:
    """The control loop that keeps the places of long requests."""

    name = "limits"

    def __init__(self, limits: SharedLimits) -> None:
        self._limits = limits

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Renew; several times within a lease, so that one failure costs nothing."""
        self._limits.renew()
        return LEASE_S / 4.0
