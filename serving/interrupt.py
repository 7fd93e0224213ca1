"""What may end a request from outside: its client goes away, or somebody takes too long.

Both cancel the task that serves it, which then asks why. The time is watched by `Deadlines`, and moved
on with every piece of a stream by no more than an assignment.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from steersman.serving.deadlines import Deadlines


class Reason(StrEnum):
    """Why a request was ended."""

    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    BACKEND_TIMEOUT = "backend_timeout"
    BACKEND_SILENT = "backend_silent"
    """Its replica was taken out, and the request may be tried elsewhere."""


class Interrupt:
    """Cancels the current task for a reason. Make it inside the task; `disarm` it in the end.

    After a `CancelledError`, `take` tells whether it was ours: if so the task goes on, if not (the
    server is stopping) the error must go on.

    Args:
        deadlines: watch the time for it; None: its own.
    """

    __slots__ = (
        "_armed",
        "_deadlines",
        "_late",
        "_reason",
        "_task",
        "_time",
        "_within_s",
        "loop",
        "since_s",
    )

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.loop = loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._time = loop.time
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self.since_s = 0.0
        """From when on what is expected is waited for, by the loop's clock. Whoever sees it happen, and
        happen again, moves it on."""
        self._within_s = 0.0
        self._late = Reason.BACKEND_TIMEOUT
        self._reason: Reason | None = None
        self._armed = True

    def expect(self, within_s: float, late: Reason) -> None:
        """Something must happen within this time from now, or from a later `since_s`, or the task is
        ended for this reason."""
        self.since_s = now_s = self._time()
        self._within_s = within_s
        self._late = late
        self._deadlines.watch(self, now_s + within_s)

    def due_s(self) -> float:
        """For `Deadlines`."""
        return self.since_s + self._within_s

    def late(self) -> None:
        """For `Deadlines`."""
        self.fire(self._late)

    def fire(self, reason: Reason) -> None:
        """End the task; the first reason counts."""
        if self._armed and self._reason is None:
            self._reason = reason
            self._task.cancel()

    def take(self) -> Reason | None:
        """After a `CancelledError`: why, if it was ours. The next reason may come then."""
        reason = self._reason
        if reason is not None:
            self._reason = None
            self._task.uncancel()
        return reason

    def disarm(self) -> None:
        """Nothing fires any more."""
        self._armed = False
        self._deadlines.forget(self)
