"""Retraining again and again, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

from steersman.agents.retrain.plan import RetrainResult
from steersman.traces.errors import SteersmanError

MOST_PAUSE_S = 5.0
"""Between two looks at the clock, which may be set meanwhile."""


class Schedule:
    """Retrains every so often. A retraining that is refused or fails is told, and tried again next time.

    Args:
        every_s: from the beginning of one retraining to that of the next; one that takes longer is
            followed by the next at once.
        run: retrains, once.
        on_result, on_refusal: told what came of it.
    """

    def __init__(
        self,
        every_s: float,
        run: Callable[[], RetrainResult],
        *,
        on_result: Callable[[RetrainResult], None],
        on_refusal: Callable[[SteersmanError], None],
    ) -> None:
        self._every_s = every_s
        self._run = run
        self._on_result, self._on_refusal = on_result, on_refusal
        self._next_s = -float("inf")

    def step(self, now_s: float) -> float:
        """Retrain if it is time; the pause until the next look, in seconds.

        Args:
            now_s: of a clock that does not jump.
        """
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            try:
                self._on_result(self._run())
            except SteersmanError as error:
                self._on_refusal(error)
            return 0.0
        return min(self._next_s - now_s, MOST_PAUSE_S)
