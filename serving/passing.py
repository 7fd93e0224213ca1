"""What is done with every piece of a stream on its way from a replica to the client.

It runs where the piece came in, in the replica's connection, and wakes nobody: a router has a hundred
times as many pieces to pass on as requests to serve.
"""

from __future__ import annotations

from steersman.serving.exchange import Exchange
from steersman.serving.interrupt import Reason
from steersman.serving.loops import Clock
from steersman.serving.pulse import Pulse


class Passing:
    """Of one stream whose answer to the client has begun.

    Args:
        exchange: whose client gets the pieces, and whose tap sees them.
        pulse: of the replica they come from.
        idle_s: the next one must come within this time.
        clock: the router's.
    """

    __slots__ = ("_clock", "_expect", "_feed", "_heard", "_idle_s", "_write")

    def __init__(self, exchange: Exchange, pulse: Pulse, idle_s: float, clock: Clock) -> None:
        self._feed = exchange.tap.feed
        self._write = exchange.outlet.write
        self._expect = exchange.interrupt.expect
        self._heard = pulse.heard
        self._idle_s = idle_s
        self._clock = clock

    def __call__(self, piece: bytes) -> bool:
        """Pass it on; whether the client takes more at once."""
        self._feed(piece)
        self._heard(self._clock())
        self._expect(self._idle_s, Reason.BACKEND_TIMEOUT)
        return self._write(piece)
