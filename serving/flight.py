"""One attempt on one replica, and its place in the router's account (`predictors/ledger.py`).

Whatever happens, the account is balanced: what a dispatch adds, exactly one of `finish` and `abort`
takes away.
"""

from __future__ import annotations

import asyncio

from steersman.predictors import ledger as L
from steersman.predictors.width import Awaited
from steersman.serving.pool import Fleet
from steersman.serving.router import Route


class Flight:
    """From dispatch to end. Making one dispatches; `depart` is to follow once the request is sent."""

    __slots__ = (
        "_awaited",
        "_delays",
        "_departed",
        "_fleet",
        "_landed",
        "_prefilling",
        "_row",
        "_teaches",
        "_timer",
        "_uncached",
        "route",
        "ttft_s",
    )

    def __init__(self, route: Route, fleet: Fleet) -> None:
        self.route = route
        self.ttft_s = float("nan")
        """From dispatch to the first token seen; NaN before, and without streaming."""
        # The row outlives the fleet's other news: it is a view of the one matrix.
        self._row = fleet.state[route.replica.index]
        self._fleet = fleet
        self._uncached = route.uncached_tokens
        self._prefilling = True
        self._landed = False
        self._timer: asyncio.TimerHandle | None = None
        request = route.prepared.request
        # The widths learn from whom the bias corrector learns.
        self._teaches = request.stream and not L.is_cold(self._row)
        self._awaited: Awaited | None = None
        self._departed = False
        self._delays = route.replica.standing.delays
        if request.stream:
            self._delays.await_answer(self, route.dispatched_s, route.raw_ttft_s)
        prompt_tokens = request.input_tokens
        L.on_lookup(self._row, prompt_tokens, route.match_fraction * prompt_tokens)
        L.on_dispatch(self._row, prompt_tokens, self._uncached, route.prepared.output_p50)
        if request.block_hashes:
            fleet.believe(route.replica, request.block_hashes, route.dispatched_s)

    def depart(self) -> None:
        """Predict how long it will take, and let the router settle: nobody waits for either. Once only,
        and not after its end."""
        if self._departed or self._landed:
            return
        self._departed = True
        route = self.route
        route.settle()
        first_s = float(route.predicted[0])
        if self._teaches:
            self._awaited = route.expect()
        elif not route.prepared.request.stream:
            # Nobody will tell when its prefill is over: believe the estimate.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(first_s, self._believe_first_token)

    def first_token(self, now_s: float) -> None:
        """The first piece of a stream arrived."""
        self.depart()
        if self._prefilling:
            self._prefilling = False
            self.ttft_s = now_s - self.route.dispatched_s
            self._delays.answered(self, now_s)
            L.on_first_token(self._row, self._uncached, self.ttft_s, self.route.raw_ttft_s)
            if self._awaited is not None:
                self._awaited.first_token(self.ttft_s)
            self._fleet.eased()

    def finish(self, now_s: float, output_tokens: int) -> None:
        """It ended well."""
        self.depart()
        route, row = self.route, self._row
        measured = not self._prefilling and self._timer is None
        self._unseen()
        self._believe_first_token()
        self._land()
        e2e_s = now_s - route.dispatched_s
        # Without a first token seen there is no time per token: what is known of it stays as it is.
        tpot_s, estimated_s = float(row[L.MEAN_TPOT_S]), 0.0
        if measured and output_tokens > 1:
            tpot_s = (e2e_s - self.ttft_s) / (output_tokens - 1)
            estimated_s = route.raw_tpot_s
            if self._awaited is not None:
                self._awaited.finish(tpot_s)
        request, output_p50 = route.prepared.request, route.prepared.output_p50
        L.on_finish(row, request.input_tokens, output_p50, output_tokens, e2e_s, tpot_s, estimated_s)

    def abort(self, output_tokens: int) -> None:
        """It failed, was refused or was cancelled. Does nothing after `finish` or another `abort`."""
        if self._landed:
            return
        self._unseen()
        self._land()
        prepared = self.route.prepared
        L.on_abort(
            self._row,
            prepared.request.input_tokens,
            self._uncached,
            prepared.output_p50,
            output_tokens,
            not self._prefilling,
        )

    def overtaken(self, now_s: float) -> None:
        """Another attempt at the same request answered first, and this one is over. If it was late, it
        counts as one that took at least as long as it has; if not, it teaches nothing."""
        if self._awaited is not None and self._awaited.known and self._prefilling:
            self._delays.answered(self, now_s)
            self._awaited = None
        self.abort(0)

    def _unseen(self) -> None:
        """It is over: without a first token seen it teaches nothing."""
        if self._prefilling and self._awaited is not None:
            self._awaited.abort()

    def _believe_first_token(self) -> None:
        if self._prefilling:
            self._prefilling = False
            # The mean itself as the outcome, and no estimate: nothing is learned from a belief.
            L.on_first_token(self._row, self._uncached, self._row[L.MEAN_TTFT_S], 0.0)

    def _land(self) -> None:
        self._landed = True
        self._delays.forget(self)
        self._fleet.eased()  # it looks later: the account is not settled yet
        if self._timer is not None:
            self._timer.cancel()
