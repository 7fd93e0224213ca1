"""The verdict of shadow mode: what the replay and the predictions carry, and what may object.

- **Replay** decides: the J ratio of challenger over champion on the same streams. Its whole interval
  under 1 is better, under 1 + margin no worse, above 1 worse; in between the log is too small to tell.
- **Predictions** have to hold: a challenger whose losses are surely larger than the champion's is worse.
- **Off-policy estimates** may object, and only object: both DR and SNIPS have to put the challenger
  surely above the champion, on enough effective decisions.
- The guard is part of what would be served, and not what is to be judged: where it decides in the
  challenger's place more often than not, whether on the log or in the replay, nothing good is said.
- Where the model of the cluster does not do what the log says, or too little was logged, nothing is
  decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from steersman.agents.evaluate.statistics import MARGIN, Ratio
from steersman.agents.evidence import Verdict
from steersman.agents.offpolicy.accuracy import Accuracy
from steersman.agents.offpolicy.matched import Matched
from steersman.agents.offpolicy.ope import OffPolicy
from steersman.env.calibrate import ErrorLine

MOST_OVERRULED = 0.5
"""Share of decisions that the guard may take over: beyond it, the guard is what was judged."""


@dataclass(frozen=True)
class Thresholds:
    """What a verdict asks for."""

    decisions: int = 500
    """Matched decisions, at least."""
    margin: float = MARGIN
    """By how much J may grow and still be no worse."""
    model_error: float = 0.25
    """Of p50 and p90 of TTFT, TPOT and E2E: how far the model of the cluster may be from the log."""
    loss: float = 1.05
    """Pinball loss of the challenger's predictions over the champion's, at most."""
    effective: float = 100.0
    """Effective decisions with which the estimates may object."""
    failed: float = 0.01
    """Share of decisions on which the challenger may fail."""
    overruled: float = MOST_OVERRULED


@dataclass
class _Findings:
    worse: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def judge(
    matched: Matched,
    ratio: Ratio | None,
    fidelity: Sequence[ErrorLine],
    accuracies: Sequence[Accuracy],
    ope: OffPolicy,
    thresholds: Thresholds,
    *,
    no_replay: str = "",
    overruled: float = 0.0,
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and its reasons, the weightiest first.

    Args:
        ratio: J of the challenger over the champion in the replay; None where there was none.
        no_replay: why there was none.
        overruled: share of the challenger's decisions in the replay that its guard took over.
    """
    found = _Findings()
    _judge_size(matched, thresholds, found)
    _judge_guard(matched, overruled, thresholds, found)
    outcome = _judge_replay(ratio, fidelity, thresholds, found, no_replay)
    _judge_predictions(accuracies, thresholds, found)
    _judge_estimates(ope, thresholds, found)
    if found.worse and len(matched) >= thresholds.decisions:
        return "worse", (*found.worse, *found.missing, *found.said)
    if found.missing or outcome is None:
        return "insufficient", (*found.missing, *found.worse, *found.said)
    return outcome, tuple(found.said)


def _judge_size(matched: Matched, thresholds: Thresholds, found: _Findings) -> None:
    n, failed = len(matched), matched.failed
    if n < thresholds.decisions:
        found.missing.append(f"{n} decisions were scored, {thresholds.decisions} are needed")
    if failed > thresholds.failed * max(n + failed, 1):
        found.worse.append(f"it failed on {failed} of {n + failed} decisions")
    if matched.differing:
        found.said.append(
            f"asked again, it chose otherwise on {matched.differing} of {matched.checked} decisions"
        )


def _judge_guard(matched: Matched, replayed: float, thresholds: Thresholds, found: _Findings) -> None:
    logged = sum(bool(said.fallback_reason) for said in matched.opinions) / max(len(matched), 1)
    line = (
        f"its guard decided in its place on {logged:.0%} of the logged decisions and {replayed:.0%} of "
        "those in the replay"
    )
    if max(logged, replayed) > thresholds.overruled:
        found.missing.append(f"{line}: the guard is what was judged")
    elif logged or replayed:
        found.said.append(line)


def _judge_replay(
    ratio: Ratio | None,
    fidelity: Sequence[ErrorLine],
    thresholds: Thresholds,
    found: _Findings,
    no_replay: str,
) -> Verdict | None:
    if ratio is None:
        found.missing.append(f"no replay: {no_replay}")
        return None
    worst = worst_error(fidelity)
    if worst is None or not abs(worst.after) <= thresholds.model_error:
        what = "cannot be compared" if worst is None else f"puts {worst.figure} {worst.after:+.0%} off"
        found.missing.append(
            f"the model of the cluster {what}, {thresholds.model_error:.0%} is allowed; its replay "
            "decides nothing"
        )
        found.said.append(f"in that replay J is {ratio} times the champion's")
        return None
    line = f"replayed on the log's own traffic, its J is {ratio} times the champion's"
    if ratio.lo > 1.0:
        found.worse.append(f"{line}: surely more")
        return "worse"
    found.said.append(line)
    if ratio.hi < 1.0:
        return "better"
    if ratio.hi <= 1.0 + thresholds.margin:
        return "no_worse"
    found.missing.append(
        f"the interval of that ratio reaches from {ratio.lo:.3f} to {ratio.hi:.3f}: too wide to tell it "
        f"from more than {1.0 + thresholds.margin:.2f}; log more traffic"
    )
    return None


def _judge_predictions(accuracies: Sequence[Accuracy], thresholds: Thresholds, found: _Findings) -> None:
    if not accuracies:
        found.missing.append("no outcome to hold predictions against: too few streamed and ended well")
    for each in accuracies:
        if each.loss.lo > thresholds.loss:
            found.worse.append(
                f"its predictions of {each.target} are worse: their loss is {each.loss} times the "
                "champion's"
            )
        elif each.target != "output":
            found.said.append(
                f"its p90 of {each.target.upper()} held for {each.challenger.within_p90:.1%} of "
                f"{each.outcomes} outcomes (the champion's for {each.champion.within_p90:.1%})"
            )


def _judge_estimates(ope: OffPolicy, thresholds: Thresholds, found: _Findings) -> None:
    if not ope.estimates:
        found.said.append(f"no off-policy estimate: {ope.note}")
        return
    robust, snips = ope.estimates["dr"], ope.estimates["snips"]
    sure = all(each.ratio.lo > 1.0 + thresholds.margin for each in (robust, snips))
    if robust.effective < thresholds.effective:
        found.said.append(
            f"off-policy estimates rest on {robust.effective:.0f} effective decisions of "
            f"{ope.decisions}: too few to object"
        )
    elif sure:
        found.worse.append(
            f"off-policy estimates object: its decisions would cost {robust.ratio} (DR) and "
            f"{snips.ratio} (SNIPS) times the champion's"
        )
    else:
        found.said.append(f"off-policy estimates do not object: {robust.ratio} (DR)")


def worst_error(lines: Sequence[ErrorLine]) -> ErrorLine | None:
    """The largest error of a median or a p90, NaN first; None where there is none. Tails of a log are
    too thin to hold a model against."""
    judged = [line for line in lines if not line.figure.endswith("_p99")]
    return max(
        judged,
        key=lambda line: math.inf if math.isnan(line.after) else abs(line.after),
        default=None,
    )
