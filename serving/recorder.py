"""What is remembered of a request that ended: metrics, the past, the outcome log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from steersman.predictors.features import REQUEST_INDEX
from steersman.predictors.past import Past
from steersman.predictors.tokens import TokenCounter
from steersman.predictors.wording import Wording
from steersman.serving.canary.canary import Canary
from steersman.serving.ended import Ended
from steersman.serving.exchange import Exchange
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.online import OnlineErrors
from steersman.serving.router import Route
from steersman.serving.shadow.shadow import Shadow
from steersman.serving.surface import Work
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.schema import Outcome, Request, Status

NAN = math.nan
_USUAL_TOKENS = REQUEST_INDEX["tenant_long_p50"]


class Recorder:
    """Told once of every request that was prepared. Never raises, never waits."""

    def __init__(
        self,
        past: Past,
        counter: TokenCounter,
        wording: Wording,
        metrics: RouterMetrics,
        errors: OnlineErrors,
        log: OutcomeLogWriter | None,
        clock: Clock,
        shadow: Shadow | None = None,
        canary: Canary | None = None,
        text_bytes: int = 0,
    ) -> None:
        self._canary = canary
        self._text_bytes = text_bytes
        self._past = past
        self._counter = counter
        self._wording = wording
        self._metrics = metrics
        self._errors = errors
        self._log = log
        self._clock = clock
        self._shadow = shadow

    def record(self, exchange: Exchange) -> None:
        """The request is over."""
        exchange.end_s = exchange.end_s or self._clock()
        outcome = outcome_of(exchange)
        self._learn(exchange, outcome)
        if self._canary is not None:
            self._canary.end(exchange, outcome)
        if exchange.intake.api.work is Work.GENERATE:
            self._errors.observe(exchange, outcome)
        self._count(exchange, outcome)
        # The log is a trace of generations: nothing is to be learned from how long an embedding is.
        if self._log is not None and exchange.intake.api.work is Work.GENERATE:
            self._hand_over(self._log, exchange, outcome)
            if self._shadow is not None and exchange.route is not None:
                self._shadow.offer(exchange.route)

    def _hand_over(self, log: OutcomeLogWriter, exchange: Exchange, outcome: Outcome) -> None:
        began_s = time.thread_time()
        arrival_unix_s = time.time() - (self._clock() - outcome.arrival_s)
        for ended in attempts_of(exchange, outcome, arrival_unix_s) if exchange.earlier else ():
            log.append(ended)
        log.append(ended_of(exchange, outcome, arrival_unix_s, self._text_bytes))
        log.handing_s += time.thread_time() - began_s

    def _learn(self, exchange: Exchange, outcome: Outcome) -> None:
        if outcome.status is not Status.OK or exchange.intake.api.work is not Work.GENERATE:
            return
        request = exchange.prepared.request
        self._past.end(request, outcome.output_tokens, outcome.called_tool)
        if not request.max_tokens or outcome.output_tokens < request.max_tokens:
            usual_tokens = float(exchange.prepared.features[_USUAL_TOKENS])
            self._wording.learn(exchange.intake.text.words, outcome.output_tokens, usual_tokens)
        if exchange.usage is not None:
            self._counter.learn(request.model, exchange.intake.text, exchange.usage.prompt_tokens)

    def _count(self, exchange: Exchange, outcome: Outcome) -> None:
        metrics, model = self._metrics, exchange.prepared.request.model
        metrics.requests.labels(model, outcome.status.value).inc()
        if exchange.route is not None:
            metrics.replica_requests.labels(exchange.route.replica.id, outcome.status.value).inc()
        if outcome.status is not Status.OK:
            return
        metrics.input_tokens.labels(model).inc(outcome.input_tokens)
        metrics.output_tokens.labels(model).inc(outcome.output_tokens)
        metrics.e2e.labels(model).observe(outcome.e2e_s)
        if not math.isnan(outcome.ttft_s):
            metrics.ttft.labels(model).observe(outcome.ttft_s)
            if outcome.output_tokens > 1:
                metrics.tpot.labels(model).observe(outcome.tpot_s)


def outcome_of(exchange: Exchange) -> Outcome:
    """How it went, in the words of the trace."""
    request, usage = exchange.prepared.request, exchange.usage
    e2e_s = exchange.end_s - request.arrival_s if exchange.status is Status.OK else NAN
    ttft_s = tpot_s = NAN
    if exchange.first_token_s is not None:
        ttft_s = exchange.first_token_s - request.arrival_s
        if exchange.output_tokens > 1:
            tpot_s = (e2e_s - ttft_s) / (exchange.output_tokens - 1)
        elif exchange.status is Status.OK:
            tpot_s = 0.0
    return Outcome(
        request_id=request.request_id,
        status=exchange.status,
        replica=exchange.route.decision.choice if exchange.route else -1,
        input_tokens=usage.prompt_tokens if usage else request.input_tokens,
        output_tokens=exchange.output_tokens,
        cached_tokens=usage.cached_tokens if usage else 0,
        arrival_s=request.arrival_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        retries=exchange.retries,
        called_tool=exchange.called_tool,
    )


def attempts_of(exchange: Exchange, outcome: Outcome, arrival_unix_s: float) -> Iterator[Ended]:
    """Lines of the outcome log for decisions that others followed, or overtook; without any text."""
    for number, tried in enumerate(exchange.earlier):
        failed = replace(
            outcome,
            status=Status.FAILED if tried.failed else Status.CANCELLED,
            output_tokens=0,
            cached_tokens=0,
            ttft_s=NAN,
            tpot_s=NAN,
            e2e_s=NAN,
            retries=number,
            called_tool=None,
        )
        ended = _ended(exchange, tried.request, tried.route, failed, arrival_unix_s, tried.reason)
        ended.asked_model = tried.stands_in_for
        ended.superseded = True
        yield ended


def ended_of(exchange: Exchange, outcome: Outcome, arrival_unix_s: float, text_bytes: int = 0) -> Ended:
    """One line of the outcome log: of the last decision, if there were several.

    Args:
        text_bytes: so much of what the client sent goes with it; 0: nothing.
    """
    request = exchange.prepared.request
    ended = _ended(exchange, request, exchange.route, outcome, arrival_unix_s, exchange.reason)
    if text_bytes:
        ended.text = exchange.intake.body[:text_bytes]
    return ended


def _ended(
    exchange: Exchange,
    request: Request,
    route: Route | None,
    outcome: Outcome,
    arrival_unix_s: float,
    reason: str,
) -> Ended:
    prepared = exchange.prepared
    if route is not None:
        _ = route.predicted  # now, and not in the thread of the log
    return Ended(
        request,
        prepared,
        route,
        outcome,
        arrival_unix_s,
        reason,
        prepared.group.outcome if prepared.group else "",
        exchange.held_s,
        exchange.stands_in_for,
    )
