"""What figures do to a canary: pure functions on its state, told the time."""

from __future__ import annotations

import math

from steersman.agents.evidence import Evidence, Verdict
from steersman.agents.sequential import BlockTest, RateTest
from steersman.serving.canary.histogram import quantile_s
from steersman.serving.canary.settings import CanarySettings, Split
from steersman.serving.canary.state import P99, PRIORS, Block, CanaryState, Figures, Phase, Transition
from steersman.serving.canary.tally import (
    ARMS,
    CHALLENGER,
    CHAMPION,
    E2E,
    ERRORS,
    GUARDS,
    MISSED,
    TTFT,
    Tally,
    add_buckets,
    add_counts,
)

LEAST_FOR_LIMIT = 100
"""Outcomes of the champion before its p99 is a limit."""
LEAST_FOR_FIGURES = 20
"""Outcomes of the challenger before its own figures say anything."""
ALONE = 2.0
"""While the challenger has all traffic, without a control, nothing tells a slower hour from a slower
challenger: its p99 has to be so many times the champion's last one."""
FROZEN = (ERRORS, MISSED)
"""In the last stage the control is small: what goes wrong by far is seen sooner against the champion's
record before. Rates alone are compared with it; a p99 follows the hour."""
BY = "canary"
_WHAT = {TTFT: "TTFT", E2E: "E2E"}
_FARE = {ERRORS: "fail", MISSED: "fail or miss an objective"}


def share_of(state: CanaryState, settings: CanarySettings) -> float:
    """Of the traffic that the challenger gets now."""
    if state.phase is Phase.PROMOTED:
        return 1.0
    if not state.running:
        return 0.0
    return min(settings.shares[min(state.stage, len(settings.shares) - 1)], 1.0 - settings.control)


def start(
    state: CanaryState, settings: CanarySettings, challenger: str, champion: str, now_unix_s: float
) -> None:
    """Give it the first share."""
    asked = f"asked for by {state.start_asked_by}" if state.start_asked_by else "a new challenger"
    state.begin(challenger, champion, now_unix_s)
    state.tried = [*(one for one in state.tried if one != challenger), challenger][-200:]
    _note(state, settings, "started", asked, now_unix_s)


def absorb(state: CanaryState, settings: CanarySettings, tally: Tally, now_unix_s: float) -> None:
    """Bet on a batch of outcomes of one router, then learn from it."""
    share = share_of(state, settings)
    for guard in GUARDS:
        n_a, k_a = tally.counts[CHALLENGER][guard]
        n_b, k_b = tally.counts[CHAMPION][guard]
        test = state.tests.setdefault(guard, RateTest(PRIORS[guard]))
        if share >= 1.0 and n_b == 0:
            test.add_alone(n_a, k_a, allowed=_rises(settings).get(guard, 0.0))
        else:
            test.add(n_a, k_a, n_b, k_b)
        if 1.0 - settings.control <= share < 1.0:
            for tests in (state.last, state.frozen):
                tests.setdefault(guard, RateTest(PRIORS[guard], b=list(test.b)))
            state.last[guard].add(n_a, k_a, n_b, k_b)
            if guard in FROZEN:
                state.frozen[guard].add_alone(n_a, k_a, allowed=_rises(settings)[guard])
    _absorb_blocks(state, settings, tally, now_unix_s)
    figures = state.figures
    for arm in ARMS:
        add_counts(figures.seen[arm], tally.seen[arm])
        for guard, buckets in tally.latencies[arm].items():
            add_buckets(figures.latencies[arm][guard], buckets)
    for guard in (TTFT, E2E) if share < 1.0 else ():
        known = figures.latencies[CHAMPION][guard]
        if sum(known.values()) >= LEAST_FOR_LIMIT:
            state.limits_s[guard] = quantile_s(known, P99)


def advance(state: CanaryState, settings: CanarySettings, now_unix_s: float) -> Transition | None:
    """The next stage, the end, or a rollback, if it is time for one."""
    if not state.running:
        return None
    for guard in GUARDS:
        reason = _worse(state, settings, guard)
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


def figures_of(state: CanaryState, stage: Figures | None = None) -> dict[str, float]:
    """What can be told in numbers: of a stage (by default this one), and of the whole canary's tests."""
    ours, other = (state.figures, _other(state)) if stage is None else (stage, stage)
    told = {
        "challenger.requests": float(ours.outcomes(CHALLENGER)),
        "champion.requests": float(other.outcomes(CHAMPION)),
        "challenger.error_rate": ours.error_rate(CHALLENGER),
        "champion.error_rate": other.error_rate(CHAMPION),
        "challenger.missed_rate": ours.rate(CHALLENGER, MISSED),
        "champion.missed_rate": other.rate(CHAMPION, MISSED),
    }
    for guard in (TTFT, E2E):
        a, b = ours.p99_s(CHALLENGER, guard), other.p99_s(CHAMPION, guard)
        told |= {f"challenger.p99_{guard}_s": a, f"champion.p99_{guard}_s": b}
        told[f"p99_{guard}_ratio"] = a / b if b > 0.0 else math.nan
    for guard in GUARDS:
        told[f"log_evidence_worse.{guard}"] = _log_worse(state, guard)
        told[f"log_evidence_better.{guard}"] = _tests(state, guard).log_better
    return {name: value for name, value in told.items() if math.isfinite(value)}


def alarm_at(settings: CanarySettings) -> float:
    """Log of the evidence at which a guard is tripped: alpha is shared by all of them."""
    return math.log((2 * len(GUARDS) + len(FROZEN)) / settings.alpha)


def _rises(settings: CanarySettings) -> dict[str, float]:
    """Of rates, by enough to matter."""
    return {ERRORS: settings.error_rise, MISSED: settings.missed_rise}


def _other(state: CanaryState) -> Figures:
    """What the challenger is compared with: the champion now, or when it last had traffic."""
    few = state.figures.outcomes(CHAMPION) < LEAST_FOR_LIMIT
    return state.reference if few and state.reference.outcomes(CHAMPION) else state.figures


def _tests(state: CanaryState, guard: str) -> RateTest | BlockTest:
    blocks = state.block_tests.get(guard)
    if blocks is not None and blocks.a + blocks.b:
        return blocks
    return state.tests.get(guard) or RateTest(0.01)


def _log_worse(state: CanaryState, guard: str) -> float:
    """The most that any of a guard's tests has."""
    late = [tests[guard].log_worse for tests in (state.last, state.frozen) if guard in tests]
    return max(_tests(state, guard).log_worse, *late, -math.inf)


def _worse(state: CanaryState, settings: CanarySettings, guard: str) -> str:
    """Why a guard says that it is worse: beyond chance, and by enough to matter."""
    evidence = _log_worse(state, guard)
    if evidence < alarm_at(settings):
        return ""
    ours, other = state.figures, _other(state)
    sure = f"evidence {math.exp(min(evidence, 300.0)):.3g}, {math.exp(alarm_at(settings)):.0f} is enough"
    # A request that misses its objective is known before it ends.
    counted = guard if guard == MISSED else ERRORS
    if ours.seen[CHALLENGER].get(counted, (0, 0))[0] < LEAST_FOR_FIGURES:
        return ""
    if guard in _FARE:
        a, b = ours.rate(CHALLENGER, guard), other.rate(CHAMPION, guard)
        if not a - b >= _rises(settings)[guard]:
            return ""
        fare = _FARE[guard]
        return f"{100 * a:.2f} % of its requests {fare}, {100 * b:.2f} % of the champion's ({sure})"
    a, b = ours.p99_s(CHALLENGER, guard), other.p99_s(CHAMPION, guard)
    alone = share_of(state, settings) >= 1.0
    if not a >= (max(ALONE, 1.0 + settings.p99_rise) if alone else 1.0 + settings.p99_rise) * b:
        return ""
    return f"p99 of {_WHAT[guard]} is {a:.3g} s, the champion's {b:.3g} s ({sure})"


def _absorb_blocks(
    state: CanaryState, settings: CanarySettings, tally: Tally, now_unix_s: float
) -> None:
    known = {(block.index, block.share, block.challenger): block for block in state.blocks}
    for lot, counts in tally.blocks.items():
        block = known.get((lot.index, lot.share, lot.challenger))
        if block is None:
            block = Block(index=lot.index, share=lot.share, challenger=lot.challenger)
            known[lot.index, lot.share, lot.challenger] = block
            state.blocks.append(block)
        add_counts(block.counts, counts)
    if settings.split is not Split.SWITCHBACK:
        return
    # What began in a stretch has as long again to end.
    open_from = int(now_unix_s // settings.block_s) - 1
    over = sorted((b for b in state.blocks if b.index < open_from), key=lambda b: b.index)
    state.blocks = [b for b in state.blocks if b.index >= open_from]
    for block in over:
        # Routers that disagreed about a stretch (a new stage, just then) have spoilt it.
        if sum(other.index == block.index for other in over) > 1 or not 0.0 < block.share < 1.0:
            continue
        for guard, (outcomes, bad) in block.counts.items():
            if outcomes:
                test = state.block_tests.setdefault(guard, BlockTest())
                test.add(bad / outcomes, block.share, is_a=block.challenger)


def _promote(state: CanaryState, settings: CanarySettings, now_unix_s: float) -> Transition:
    """It has passed all stages."""
    told = figures_of(state, state.reference)
    verdict, reasons = _verdict(state, settings)
    state.phase = Phase.PROMOTED
    _leave(state, verdict, reasons, told, now_unix_s)
    return _note(state, settings, "promoted", reasons[0], now_unix_s, told)


def _verdict(state: CanaryState, settings: CanarySettings) -> tuple[Verdict, tuple[str, ...]]:
    """Of one that was not rolled back."""
    limit, compared = alarm_at(settings), state.reference
    stages = ", ".join(f"{100 * share:g} %" for share in settings.shares)
    passed = f"passed {stages} of the traffic for {settings.hold_s:g} s or longer each"
    bad, good = [], []
    for guard in (TTFT, E2E):
        a, b = compared.p99_s(CHALLENGER, guard), compared.p99_s(CHAMPION, guard)
        if a > (1.0 + settings.p99_rise) * b:
            bad.append(f"p99 of {_WHAT[guard]} was {a:.3g} s against {b:.3g} s, which may be chance")
        if _tests(state, guard).log_better >= limit:
            good.append(f"fewer of its requests exceed the champion's p99 of {_WHAT[guard]}")
    for guard, rise in _rises(settings).items():
        a, b = compared.rate(CHALLENGER, guard), compared.rate(CHAMPION, guard)
        if a - b > rise:
            told = f"{100 * a:.2f} % of its requests {_FARE[guard]}, {100 * b:.2f} % of the champion's"
            bad.append(f"{told}, which may be chance")
    if _tests(state, MISSED).log_better >= limit:
        good.append("fewer of its requests miss an objective")
    if bad:
        return "insufficient", (bad[0], *bad[1:], passed)
    if good:
        return "better", (good[0], *good[1:], passed)
    return "no_worse", (f"{passed}, and no guard found it worse",)


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
