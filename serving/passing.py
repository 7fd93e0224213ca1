"""What is done with every piece of a stream on its way from a replica to the client.

It runs where the piece came in, in the replica's connection, and wakes nobody: a router has a hundred
times as many pieces to pass on as requests to serve.
"""

from __future__ import annotations

from steersman.serving.exchange import Exchange
from steersman.serving.loops import Clock
from steersman.serving.pulse import Pulse


class Passing:
    """Of one stream whose answer to the client has begun.

    Args:
        exchange: whose client gets the pieces, and whose tap sees them.
        pulse: of the replica they come from.
        clock: the router's.
    """

    __slots__ = ("_clock", "_feed", "_heard", "_interrupt", "_time", "_write")

    def __init__(self, exchange: Exchange, pulse: Pulse, clock: Clock) -> None:
        self._feed = exchange.tap.feed
        self._write = exchange.outlet.write
        self._interrupt = exchange.interrupt
        self._time = exchange.interrupt.loop.time
        self._heard = pulse.heard
        self._clock = clock

    def __call__(self, piece: bytes) -> bool:
        """Pass it on; whether the client takes more at once."""
        self._feed(piece)
        self._heard(self._clock())
        self._interrupt.since_s = self._time()  # the next one has as long as this one had
        return self._write(piece)
