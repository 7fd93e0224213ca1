"""Of the traffic, what the challenger gets."""

from __future__ import annotations

from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.state import CanaryState, Phase


def share_of(state: CanaryState, settings: CanarySettings) -> float:
    """Of the traffic that the challenger gets now."""
    if state.phase is Phase.PROMOTED:
        return 1.0
    if not state.running:
        return 0.0
    return min(settings.shares[min(state.stage, len(settings.shares) - 1)], 1.0 - settings.control)
