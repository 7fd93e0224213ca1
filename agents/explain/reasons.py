"""The reason of a decision, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from steersman.agents.affinity import AFFINITY
from steersman.agents.explain.candidate import Candidate
from steersman.agents.guard.settings import FallbackReason
from steersman.agents.policy import NO_CANDIDATE
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Decision, Status

GUARD: dict[str, str] = {
    FallbackReason.NO_MODEL: "there is no trained policy",
    FallbackReason.STALE: "the metrics of too many replicas were too old",
    FallbackReason.OUT_OF_RANGE: "too much lay outside what the policy was trained on",
    FallbackReason.ERROR: "the trained policy failed",
    FallbackReason.DEADLINE: "the trained policy took too long",
    FallbackReason.INVALID_CHOICE: "the trained policy chose what may not be chosen",
    FallbackReason.NON_FINITE: "a score of the trained policy was no finite number",
    FallbackReason.DISAGREEMENT: "the heads of the trained policy disagreed",
    FallbackReason.SLOW_CHOICE: "the trained policy chose a replica far slower to the first token than "
    "the best",
    FallbackReason.COSTLY: "choices of the trained policy cost more than the better of two at random",
    FallbackReason.CROWDED: "the trained policy's choice had had too large a share of recent requests "
    "and was busier than the others",
    FallbackReason.LATCHED: "the trained policy had been in doubt too often, and has not yet proved "
    "itself again",
}
"""What each reason of the guard means."""

_TERMS = {
    "ttft_share": "its own first token",
    "tpot_share": "its own pace",
    "miss_chance": "the risk that it misses its objectives",
    "inflicted_share": "the delay it brings to requests there",
    "tipping_share": "the risk that those miss theirs",
    "congestion_share": "the delay of requests to come",
    "reuse_share": "prefixes computed that are cached elsewhere",
    "eviction_share": "cached prefixes that it displaces",
}
_CLEAR = 0.05
"""Share of all differences below which one is not worth a word."""
_STALE_S = 1.0


def reasons(candidates: Sequence[Candidate], decision: Decision) -> Iterator[str]:
    """Who decided, why so, and what the next best was.

    Args:
        candidates: from best to worst; see `Candidate.rank`.
        decision: about them.
    """
    allowed = [candidate for candidate in candidates if not candidate.barred]
    chosen = next((candidate for candidate in candidates if candidate.chosen), None)
    if decision.choice == NO_CANDIDATE or chosen is None:
        yield f"None of {len(candidates)} replicas could be chosen: {_barred(candidates)}."
        return
    yield from _who(decision, chosen, allowed, candidates)
    others = [candidate for candidate in allowed if not candidate.chosen]
    if not others:
        yield "Nothing else could be chosen."
        return
    yield _rule(decision, chosen, others[0])
    yield from _compared(chosen, others[0])
    cheapest = min(allowed, key=lambda candidate: candidate.marginal_cost)
    if cheapest.replica not in {chosen.replica, others[0].replica}:
        yield from _compared(chosen, cheapest)
    if not chosen.features["age_s"] <= _STALE_S:
        yield f"The metrics of {chosen.replica} were {chosen.features['age_s']:.1f} s old."


def outcome(record: OutcomeRecord) -> Iterator[str]:
    """What was expected of a logged decision, and what came of it."""
    slo = f"objectives {_s(record.ttft_slo_s)} and {_ms(record.tpot_slo_s)}"
    yield (
        f"Expected there: first token after {_s(record.ttft_p50_s)} (9 in 10 within "
        f"{_s(record.ttft_p90_s)}), then {_ms(record.tpot_p50_s)} a token for about "
        f"{record.output_p50:.0f} tokens; {slo}."
    )
    if record.retries:
        plural = "s" if record.retries > 1 else ""
        yield f"It is the decision after {record.retries} failed attempt{plural} elsewhere."
    if record.status is not Status.OK:
        yield f"It ended as {record.status.value}{f' ({record.error})' if record.error else ''}."
    elif math.isfinite(record.ttft_s):
        waited_s = record.ttft_s - (record.queued_s if math.isfinite(record.queued_s) else 0.0)
        yield (
            f"What came: first token after {_s(waited_s)}, then {_ms(record.tpot_s)} a token for "
            f"{record.output_tokens} tokens, of the prompt {record.cached_tokens} from the cache."
        )
    else:
        yield f"What came: {record.output_tokens} tokens after {_s(record.e2e_s)}."


def _who(
    decision: Decision, chosen: Candidate, allowed: Sequence[Candidate], all_: Sequence[Candidate]
) -> Iterator[str]:
    version = f" ({decision.version})" if decision.version else ""
    chance = "" if decision.propensity == 1.0 else f", with probability {decision.propensity:.3g}"
    yield f"{decision.policy}{version} chose {chosen.replica} among {len(allowed)} replicas{chance}."
    if len(allowed) < len(all_):
        yield f"Could not be chosen: {_barred(all_)}."
    if decision.fallback_reason:
        why = GUARD.get(decision.fallback_reason, decision.fallback_reason)
        yield f"The guard had {decision.policy} decide because {why}."


def _rule(decision: Decision, chosen: Candidate, second: Candidate) -> str:
    """Scores, or that there are none."""
    if decision.policy == AFFINITY:
        return (
            f"{chosen.replica} is where this request's group is at home, and was not overloaded; "
            f"by marginal cost the best other was {second.replica}."
        )
    if chosen.score is None or second.score is None:
        return (
            f"{decision.policy} goes by a rule of its own, without scores; "
            f"by marginal cost the best other was {second.replica}."
        )
    figures = f"{chosen.score:.3g} against {second.score:.3g} of {second.replica}"
    if chosen.score > second.score:
        return f"Chosen because its score was the best: {figures}, the second best."
    if chosen.score == second.score:
        return f"Chosen by lot from those with the best score: {figures}."
    return f"Chosen by lot, not by score: {figures}, the best."


def _compared(chosen: Candidate, other: Candidate) -> Iterator[str]:
    """The terms of the marginal cost in which they differ, and what is behind that."""
    gaps = {term: chosen.cost[term] - other.cost[term] for term in _TERMS}
    total = chosen.marginal_cost - other.marginal_cost
    whole = sum(map(abs, gaps.values()))
    parts = [
        f"{abs(gap):.2g} {'more' if gap > 0 else 'less'} for {_TERMS[term]}"
        for term, gap in sorted(gaps.items(), key=lambda item: -abs(item[1]))
        if abs(gap) > _CLEAR * whole
    ]
    if not parts:
        yield f"It would cost all requests together the same on {other.replica}."
    else:
        more = "more" if total > 0 else "less"
        yield (
            f"There the request adds {chosen.marginal_cost:.3g} to the cost of all, {abs(total):.2g} "
            f"{more} than on {other.replica}: {', '.join(parts)}."
        )
    behind = list(_behind(chosen, other))
    if behind:
        yield f"Against {other.replica}: {'; '.join(behind)}."


def _behind(chosen: Candidate, other: Candidate) -> Iterator[str]:
    mine, theirs = chosen.features, other.features
    if abs(mine["match_fraction"] - theirs["match_fraction"]) >= _CLEAR:
        yield f"{mine['match_fraction']:.0%} of the prompt cached, not {theirs['match_fraction']:.0%}"
    if abs(mine["queue"] - theirs["queue"]) >= 0.5:
        yield f"{mine['queue']:.0f} requests there, not {theirs['queue']:.0f}"
    if abs(mine["waiting"] - theirs["waiting"]) >= 0.5:
        yield f"{mine['waiting']:.0f} of them waiting, not {theirs['waiting']:.0f}"
    for name, unit, what in (("ttft_s", _s, "to the first token"), ("tpot_s", _ms, "a token")):
        if abs(mine[name] - theirs[name]) > _CLEAR * max(mine[name], theirs[name]):
            yield f"{unit(mine[name])} {what}, not {unit(theirs[name])}"


def _barred(candidates: Sequence[Candidate]) -> str:
    by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.barred:
            by_reason.setdefault(candidate.barred, []).append(candidate.replica)
    told = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        told.append(f"{', '.join(names[:3])}{more} ({reason})")
    return "; ".join(told) or "there was none"


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
