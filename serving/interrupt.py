"""What may end a request from outside: its client goes away, or somebody takes too long.

Both cancel the task that serves it, which then asks why. One timer a request, moved lazily, so that
watching every piece of a stream costs next to nothing.
"""

from __future__ import annotations

import asyncio
import math
from enum import StrEnum

_LOOK_S = 30.0
"""The timer looks this often at least: a request's first deadline is its longest, and a timer that is
set early enough need not be set again for the next one."""


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
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        task = asyncio.current_task(self.loop)
        assert task is not None
        self._task = task
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        """When it looks."""
        self._deadline_s = 0.0
        self._late = Reason.BACKEND_TIMEOUT
        self._reason: Reason | None = None
        self._armed = True

    def expect(self, within_s: float, late: Reason) -> None:
        """Something must happen within this time, or the task is ended for this reason."""
        deadline_s = self._deadline_s = self.loop.time() + within_s
        self._late = late
        if deadline_s < self._timer_s:
            self._set_timer()

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_s = math.inf

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = min(self._deadline_s, self.loop.time() + _LOOK_S)
        self._timer = self.loop.call_at(self._timer_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, math.inf
        if self.loop.time() < self._deadline_s:
            self._set_timer()
        else:
            self.fire(self._late)
