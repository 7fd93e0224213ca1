"""One attempt on one replica: its place in the account, among the breaker's probes, and its answer."""

from __future__ import annotations

import asyncio

from steersman.serving.flight import Flight
from steersman.serving.pool import Fleet
from steersman.serving.router import Route
from steersman.serving.wire.response import Response


class Attempt:
    """From dispatch to end. Making one dispatches; `close` it or tell it that it was `overtaken`."""

    __slots__ = ("_probes", "flight", "response", "route")

    def __init__(
        self, route: Route, fleet: Fleet, now_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.route = route
        self.flight = Flight(route, fleet)
        # When the sender first waits, the request has been written, or a connection is being made.
        loop.call_soon(self.flight.depart)
        self.response: Response | None = None
        """Once its headers are here."""
        self._probes = route.replica.standing.breaker.enter(now_s)

    def close(self, output_tokens: int) -> None:
        """It is over. The connection of an answer that was read to its end is back in the pool by now;
        any other is closed, and that ends the replica's work on it."""
        if self.response is not None:
            self.response.close()
        self.flight.abort(output_tokens)
        if self._probes:
            self._probes = False
            self.route.replica.standing.breaker.leave()

    def overtaken(self, now_s: float) -> None:
        """Another attempt at the same request answered first."""
        self.flight.overtaken(now_s)
        self.close(0)
