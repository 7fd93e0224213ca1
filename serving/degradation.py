"""What is served when nobody serves the model that was asked for (SPEC D4).

Another model that the operator named for it, in their order; then (its place is here) a cached answer;
then a 503 that says when to come again. Whatever it is, the header `x-steersman-degraded` says it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steersman.serving.exchange import Exchange
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet

NOBODY = b"no-replica"
"""Value of the header on a 503."""


class Degradation:
    """The stairs down; one for the whole router."""

    def __init__(self, fleet: Fleet, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._metrics = metrics

    def notice(self, exchange: Exchange) -> None:
        """A request whose model has no pool any more came with the first one that stands in for it."""
        asked = self._fleet.aliases.get(exchange.intake.text.model, exchange.intake.text.model)
        model = exchange.prepared.pool.model
        if model != asked and model in self._fleet.stand_ins.get(asked, ()):
            exchange.stands_in_for = asked
            self._metrics.degraded.labels(asked, model).inc()

    def step_down(self, exchange: Exchange) -> bool:
        """From here on another model is to answer; False if there is none to ask any more.

        What was understood of the request stays: its prompt is the same, and how long its answer would
        have been is the best guess there is of how long it will be.
        """
        prepared = exchange.prepared
        asked = exchange.stands_in_for or prepared.pool.model
        stairs = list(self._fleet.stand_ins.get(asked, ()))
        if exchange.stands_in_for:
            stairs = stairs[stairs.index(prepared.pool.model) + 1 :]
        for model in stairs:
            pool = self._fleet.pools.get(model)
            if pool is None:
                continue
            exchange.stands_in_for = asked
            prepared.pool = pool
            prepared.request = replace(prepared.request, model=model)
            prepared.excluded = np.zeros(len(pool.ids), dtype=np.bool_)
            self._metrics.degraded.labels(asked, model).inc()
            return True
        return False
