"""What the figures say of a challenger: pure functions on a canary's state."""

from __future__ import annotations

import math

from steersman.agents.evidence import Verdict
from steersman.agents.sequential import BlockTest, RateTest
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import CanaryState, Figures
from steersman.serving.canary.tally import (
    CHALLENGER,
    CHAMPION,
    E2E,
    ERRORS,
    GUARDS,
    MISSED,
    TTFT,
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
_WHAT = {TTFT: "TTFT", E2E: "E2E"}
_FARE = {ERRORS: "fail", MISSED: "fail or miss an objective"}


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


def worse(state: CanaryState, settings: CanarySettings, guard: str) -> str:
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
        if not a - b >= rises_of(settings)[guard]:
            return ""
        fare = _FARE[guard]
        return f"{100 * a:.2f} % of its requests {fare}, {100 * b:.2f} % of the champion's ({sure})"
    a, b = ours.p99_s(CHALLENGER, guard), other.p99_s(CHAMPION, guard)
    alone = share_of(state, settings) >= 1.0
    if not a >= (max(ALONE, 1.0 + settings.p99_rise) if alone else 1.0 + settings.p99_rise) * b:
        return ""
    return f"p99 of {_WHAT[guard]} is {a:.3g} s, the champion's {b:.3g} s ({sure})"


def verdict_of(state: CanaryState, settings: CanarySettings) -> tuple[Verdict, tuple[str, ...]]:
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
    for guard, rise in rises_of(settings).items():
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


def alarm_at(settings: CanarySettings) -> float:
    """Log of the evidence at which a guard is tripped: alpha is shared by all of them."""
    return math.log((2 * len(GUARDS) + len(FROZEN)) / settings.alpha)


def rises_of(settings: CanarySettings) -> dict[str, float]:
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
