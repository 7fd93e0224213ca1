"""What operators may do with a canary, and what they are told of it.

Commands are changes of the state, so that they work from any router's operators' page and from the
command line beside them (`steersman canary`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from steersman.serving.canary import rules
from steersman.serving.canary.finding import alarm_at, figures_of
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import CanaryState, Phase, Transition
from steersman.serving.canary.store import Change
from steersman.traces.errors import ConfigError


class Command(StrEnum):
    """What can be asked for."""

    START = "start"
    """Try the challenger, also one that was tried before."""
    ABORT = "abort"
    """All traffic to the champion, at once; also of one that was promoted."""
    PROMOTE = "promote"
    """All traffic to the challenger, at once."""


def change_for(
    command: Command, settings: CanarySettings, *, by: str, reason: str, now_unix_s: float
) -> Change[Transition | None]:
    """The change that does it; it raises ConfigError where there is nothing to do it to."""

    def change(state: CanaryState) -> Transition | None:
        if command is Command.START:
            if state.phase in {Phase.RUNNING, Phase.PROMOTED}:
                raise ConfigError(
                    f"the canary of {state.challenger} is {state.phase.value}; abort it first"
                )
            state.start_asked_by = by
            return None
        if command is Command.ABORT:
            if state.phase not in {Phase.RUNNING, Phase.PROMOTED}:
                raise ConfigError("no canary is running; 'steersman canary status' shows the last one")
            return rules.abort(state, settings, f"by {by}: {reason}", now_unix_s)
        if not state.running:
            raise ConfigError("no canary is running; start one with 'steersman canary start'")
        return rules.promote_by_hand(state, settings, by, reason, now_unix_s)

    return change


def describe(state: CanaryState, settings: CanarySettings, now_unix_s: float) -> dict[str, Any]:
    """How it stands, for people and programs. Times are in seconds since 1970."""
    told: dict[str, Any] = {
        "phase": state.phase.value,
        "challenger": state.challenger,
        "champion": state.champion,
        "share": share_of(state, settings),
        "start_asked_by": state.start_asked_by,
        "history": [one.model_dump() for one in state.transitions],
    }
    if state.running:
        told |= {
            "stage": state.stage + 1,
            "stages": list(settings.shares),
            "held_s": now_unix_s - state.stage_since_unix_s,
            "hold_s": settings.hold_s,
            "requests": state.figures.outcomes("challenger"),
            "least_requests": settings.least_requests,
            "alarm_at": alarm_at(settings),
            "figures": figures_of(state),
        }
    return told
