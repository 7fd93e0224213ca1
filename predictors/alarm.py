"""When drift calls for a refit."""

from __future__ import annotations


class Alarm:
    """When a refit is due after drift: when enough has been seen since.

    Detectors of different hardware and targets alarm one after another. Each new alarm moves the moment
    of the change, since what came before it is of another world; but a refit is put off no longer than
    twice the wait from the first.

    Args:
        wait: outcomes to wait for.
    """

    def __init__(self, wait: int) -> None:
        self._wait = wait
        self._alarms = 0
        self._first: int | None = None
        self._last = 0
        self._needed = wait
        self.since_s: float | None = None
        """Time of the last alarm; None: there is none to act on."""

    def look(self, drifted: int, outcomes: int, now_s: float) -> None:
        """How things are.

        Args:
            drifted: detectors that have alarmed since they were restarted.
            outcomes: seen so far.
            now_s: on the clock of the outcomes.
        """
        if drifted > self._alarms:
            if self._alarms == 0 or self._first is None:
                self._first, self._needed = outcomes, self._wait
            self._last, self.since_s = outcomes, now_s
        self._alarms = drifted

    def is_due(self, outcomes: int) -> bool:
        """Whether to refit now."""
        if self._first is None:
            return False
        waited = outcomes - self._last >= self._needed
        return waited or outcomes - self._first >= 2 * self._needed

    def settled(self, outcomes: int, *, replaced: bool) -> None:
        """A refit has come to an end, and the detectors were restarted.

        Args:
            outcomes: seen when it began.
            replaced: whether it found something better. Then it is worth another, once there is twice
                as much to learn from; else the world is accepted as it is.
        """
        self._alarms = 0
        if replaced and self._first is not None:
            self._needed = 2 * max(outcomes - self._last, self._wait)
            self._first = self._last
        else:
            self._first = self.since_s = None
