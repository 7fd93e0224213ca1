"""What figures do to a canary: pure functions on its state, told the time."""

from __future__ import annotations

from steersman.agents.evidence import Evidence, Verdict
from steersman.serving.canary.finding import ALONE, LEAST_FOR_LIMIT, figures_of, verdict_of, worse
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import CanaryState, Figures, Phase, Transition
from steersman.serving.canary.tally import CHALLENGER, CHAMPION, GUARDS

BY = "canary"


def start(
    state: CanaryState, settings: CanarySettings, challenger: str, champion: str, now_unix_s: float
) -> None:
    """Give it the first share."""
    asked = f"asked for by {state.start_asked_by}" if state.start_asked_by else "a new challenger"
    state.begin(challenger, champion, now_unix_s)
    state.tried = [*(one for one in state.tried if one != challenger), challenger][-200:]
    _note(state, settings, "started", asked, now_unix_s)


def advance(state: CanaryState, settings: CanarySettings, now_unix_s: float) -> Transition | None:
    """The next stage, the end, or a rollback, if it is time for one."""
    if not state.running:
        return None
    for guard in GUARDS:
        reason = worse(state, settings, guard)
        if reason:
            return roll_back(state, settings, reason, now_unix_s)
    held_s = now_unix_s - state.stage_since_unix_s
    if held_s < settings.hold_s or state.figures.outcomes(CHALLENGER) < settings.least_requests:
        return None
    if state.figures.outcomes(CHAMPION) >= LEAST_FOR_LIMIT or not state.reference.outcomes(CHAMPION):
        state.reference = state.figures.model_copy(deep=True)
    told = figures_of(state)
    if state.stage + 1 >= len(settings.shares):
        return _promote(state, settings, now_unix_s)
    state.stage += 1
    state.stage_since_unix_s = now_unix_s
    state.figures = Figures()
    if share_of(state, settings) >= 1.0:
        state.limits_s = {guard: ALONE * limit_s for guard, limit_s in state.limits_s.items()}
    reason = f"nothing spoke against it in {held_s:.0f} s"
    return _note(state, settings, "stage", reason, now_unix_s, told)


def roll_back(
    state: CanaryState, settings: CanarySettings, reason: str, now_unix_s: float
) -> Transition:
    """All traffic is the champion's again."""
    told = figures_of(state)
    state.phase = Phase.ROLLED_BACK
    _leave(state, "worse", (reason,), told, now_unix_s)
    return _note(state, settings, "rolled_back", reason, now_unix_s, told)


def abort(state: CanaryState, settings: CanarySettings, reason: str, now_unix_s: float) -> Transition:
    """It ends without a verdict; all traffic is the champion's."""
    state.phase = Phase.ABORTED
    state.start_asked_by = ""
    return _note(state, settings, "aborted", reason, now_unix_s, figures_of(state))


def finish(state: CanaryState, settings: CanarySettings, reason: str, now_unix_s: float) -> Transition:
    """The champion is another one now: what was promoted needs no share any more."""
    state.phase = Phase.IDLE
    return _note(state, settings, "done", reason, now_unix_s)


def promote_by_hand(
    state: CanaryState, settings: CanarySettings, by: str, reason: str, now_unix_s: float
) -> Transition:
    """All traffic is the challenger's from now on, whatever is known."""
    told = figures_of(state)
    state.phase = Phase.PROMOTED
    evidence = Evidence(
        kind="override",
        challenger=state.challenger,
        champion=state.champion,
        verdict="insufficient",
        reasons=(reason, "promoted by hand during its canary"),
        figures=told,
        made_unix_s=now_unix_s,
        by=by,
    )
    state.evidence, state.evidence_left = evidence.to_json(), False
    return _note(state, settings, "promoted", f"by {by}: {reason}", now_unix_s, told)


def _promote(state: CanaryState, settings: CanarySettings, now_unix_s: float) -> Transition:
    """It has passed all stages."""
    told = figures_of(state, state.reference)
    verdict, reasons = verdict_of(state, settings)
    state.phase = Phase.PROMOTED
    _leave(state, verdict, reasons, told, now_unix_s)
    return _note(state, settings, "promoted", reasons[0], now_unix_s, told)


def _leave(
    state: CanaryState,
    verdict: Verdict,
    reasons: tuple[str, ...],
    figures: dict[str, float],
    now_unix_s: float,
) -> None:
    evidence = Evidence(
        kind="canary",
        challenger=state.challenger,
        champion=state.champion,
        verdict=verdict,
        reasons=reasons,
        figures=figures,
        made_unix_s=now_unix_s,
        by=BY,
    )
    state.evidence, state.evidence_left = evidence.to_json(), False


def _note(
    state: CanaryState,
    settings: CanarySettings,
    what: str,
    reason: str,
    now_unix_s: float,
    figures: dict[str, float] | None = None,
) -> Transition:
    transition = Transition(
        at_unix_s=now_unix_s,
        what=what,
        challenger=state.challenger,
        champion=state.champion,
        share=share_of(state, settings),
        reason=reason,
        figures=figures or {},
    )
    state.note(transition)
    return transition
