"""What challengers would have done with the requests that were served, scored in a thread of its own.

The request path hands over a reference when a request has ended (`offer`): one length check and one
append, no copy, no lock, nobody is woken. The thread looks every `LOOK_S`, takes at most its share of
one core's time, and lets go of the interpreter after every case, so that a request never waits for more
than one. What is too much stays in the queue; what finds the queue full is dropped, and counted.

Whatever a challenger throws is counted and told once for each of its versions; nobody else notices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from steersman.agents.shadow.challenger import Case, Challenger
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.router import Route
from steersman.serving.shadow.settings import ShadowSettings
from steersman.traces.outcome_log import OutcomeLogWriter

logger = logging.getLogger("steersman.serving")

LOOK_S = 0.05
"""Pause of the thread while there is nothing to do, or nothing may be done."""
BREATH_S = 5e-5
"""Pause after a case: long enough for another thread to take over the interpreter."""
MOST_SAVED_S = 0.5
"""CPU time that may be saved up for a burst."""


class Shadow:
    """The queue, the challengers, and the thread that has them speak.

    Args:
        log: takes their opinions.
        cpu_clock: CPU seconds of the thread that asks.
    """

    def __init__(
        self,
        settings: ShadowSettings,
        log: OutcomeLogWriter,
        metrics: RouterMetrics,
        clock: Clock = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.challengers: Mapping[str, Challenger] = {}
        """By directory. Replaced as a whole, never changed under the thread."""
        self.dropped = 0
        self._log = log
        self._metrics = metrics
        self._clock, self._cpu_clock = clock, cpu_clock
        self._most_cpu = settings.most_cpu
        self._most_queued = settings.queue_requests
        self._queue: deque[Route] = deque()
        self._allowed_s = 0.0
        self._looked_s = clock()
        self._told: set[tuple[str, str]] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    @property
    def queued(self) -> int:
        """Requests that wait to be scored."""
        return len(self._queue)

    def offer(self, route: Route) -> None:
        """A request has ended that went this way. Constant work; never raises, never waits.

        Not looked at: what a challenger decided itself, in a canary.
        """
        arm = route.prepared.arm
        if not self.challengers or (arm is not None and arm.is_challenger):
            return
        if len(self._queue) >= self._most_queued:
            self.dropped += 1
            return
        self._queue.append(route)

    def start(self) -> None:
        """Begin to score."""
        self._thread.start()

    def close(self, *, last: bool = True) -> None:
        """Stop, and write what has been said; `last` as of the log's `close`. What waits to be scored is
        dropped."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.dropped += len(self._queue)
        self._queue.clear()
        self._log.close(last=last)

    def work(self) -> int:
        """Score what waits, as far as the share of CPU time goes; returns how many requests."""
        now_s = self._clock()
        earned_s = self._most_cpu * max(now_s - self._looked_s, 0.0)
        self._allowed_s = min(self._allowed_s + earned_s, MOST_SAVED_S)
        self._looked_s = now_s
        scored = 0
        while self._queue and self._allowed_s > 0.0 and not self._closing.is_set():
            began_s = self._cpu_clock()
            self._score(self._queue.popleft())
            self._allowed_s -= self._cpu_clock() - began_s
            scored += 1
            time.sleep(BREATH_S)
        return scored

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                self.work()
            except Exception as error:  # the thread must outlive anything
                self._tell("", "", error)

    def _score(self, route: Route) -> None:
        case = case_of(route)
        for directory, challenger in self.challengers.items():
            try:
                record = challenger.opinion(case)
            except Exception as error:  # whatever a model can throw
                self._metrics.shadow.errors.labels(directory).inc()
                self._tell(directory, challenger.version, error)
                record = challenger.failed(case, error)
            else:
                agreement = "same" if record.agrees else "other"
                self._metrics.shadow.scored.labels(directory, agreement).inc()
            self._log.append(record)

    def _tell(self, directory: str, version: str, error: Exception) -> None:
        if (directory, version) in self._told:
            return
        self._told.add((directory, version))
        what = f"challenger {version} of {directory}" if directory else "shadow scoring"
        first = str(error).splitlines()[0] if str(error) else ""
        logger.warning(
            "%s failed: %s: %s; it goes on, further failures are only counted",
            *(what, type(error).__name__, first),
        )


def case_of(route: Route) -> Case:
    """What was known when this way was chosen."""
    return Case(
        request_id=route.prepared.request.request_id,
        model=route.prepared.pool.model,
        decided_at_s=route.dispatched_s,
        state=route.snapshot.state,
        match_tokens=route.match_tokens,
        mask=route.observation.mask,
        request_features=route.prepared.features,
        identity=route.observation.identity,
        choice=route.decision.choice,
    )
