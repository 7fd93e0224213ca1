"""Who is tried against whom on one router, and whether that still holds."""

from __future__ import annotations

from steersman.serving.canary.challenger import Challenger, mark_of
from steersman.serving.canary.state import CanaryState, Phase
from steersman.serving.config import RouterSettings
from steersman.serving.models import ServedModels

MISMATCH_S = 60.0
"""For so long a router may serve others than those that are tried (bundles reach machines one after the
other); then the canary is aborted."""


class Pairing:
    """The champion and the challenger that this router serves.

    Args:
        settings: of the router.
        champion: who decides otherwise.
        challenger: who is tried.
    """

    def __init__(self, settings: RouterSettings, champion: ServedModels, challenger: Challenger) -> None:
        self._settings = settings
        self._champion = champion
        self._challenger = challenger
        self._since_s: float | None = None
        """Since when the two are others than those that are tried."""

    def apply(self, settings: RouterSettings) -> None:
        """From now on these count."""
        self._settings = settings

    @property
    def champion_version(self) -> str:
        """What the state calls the champion."""
        mark = mark_of(self._settings.canary.challenger)
        name = f"+{self._settings.policy.name}" if mark else ""
        return f"{self._champion.version}{name}"

    @property
    def distinct(self) -> bool:
        """Whether there is a challenger, and it is not the champion."""
        return self._challenger.version not in {"", self._champion.version}

    def fits(self, state: CanaryState) -> bool:
        """Whether this router can do what the state says."""
        ready = self._challenger.models is not None and self._challenger.version == state.challenger
        # A promoted challenger serves until it is champion; one that is tried, against that champion.
        return ready and (state.phase is Phase.PROMOTED or self.champion_version == state.champion)

    def taken_over(self, state: CanaryState) -> bool:
        """Whether the champion is another one than the one it was tried against."""
        mark = mark_of(self._settings.canary.challenger)
        if mark and state.challenger.endswith(mark):
            wanted, settings = self._settings.canary.challenger, self._settings
            return (wanted.policy or settings.policy, wanted.guard or settings.guard) == (
                settings.policy,
                settings.guard,
            )
        return self.champion_version != state.champion

    def mismatch(self, state: CanaryState, now_unix_s: float) -> str:
        """Why this canary cannot go on, if that has lasted."""
        why = ""
        if state.running and self._challenger.version != state.challenger:
            why = f"the challenger is {self._challenger.version or 'gone'} now"
        elif state.running and self.champion_version != state.champion:
            why = f"the champion is {self.champion_version or 'gone'} now"
        if not why:
            self._since_s = None
            return ""
        if self._since_s is None:
            self._since_s = now_unix_s
        return why if now_unix_s - self._since_s >= MISMATCH_S else ""
