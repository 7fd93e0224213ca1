"""Champion against challenger: on held-out log, replayed in the cluster it tells of, and on scenarios.

The log decides, since it is this cluster's own traffic; the scenarios can only forbid: a policy that is
clearly worse on other clusters has learned the log by heart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from steersman.agents.evaluate.run import Protocol, evaluate, run_count
from steersman.agents.evaluate.statistics import MARGIN, Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.evidence import Evidence, Verdict
from steersman.agents.offpolicy.contestants import Contestant
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION, replay
from steersman.agents.offpolicy.verdict import MOST_OVERRULED
from steersman.agents.offpolicy.world import World
from steersman.agents.retrain.settings import ComparisonSettings
from steersman.env.calibrate import ErrorLine
from steersman.env.scenario import load_scenario

FAITHFUL = ("ttft_p50", "e2e_p50")
MOST_ERROR = 0.3
"""Of these quantiles, with which the model of the cluster is still believed."""
LEAST_STREAMS = 5

Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Comparison:
    """Everything that was found out."""

    log: EvaluationTable
    scenarios: EvaluationTable | None
    fidelity: tuple[ErrorLine, ...]
    evidence: Evidence


def compare(
    world: World,
    champion: Contestant,
    challenger: Contestant,
    settings: ComparisonSettings,
    *,
    held_share: float,
    jobs: int,
    now_unix_s: float,
    tell: Tell,
) -> Comparison:
    """Have both meet.

    Args:
        world: of the whole log; its hardware counts, and of its traffic the last `held_share`.
        tell: told the share done.

    Raises:
        ConfigError: an unknown scenario, or one without saturation.
    """
    held = world.trace.split((1.0 - held_share, held_share))[1]
    fidelity = world.fidelity()
    streams = settings.streams
    scenarios = [load_scenario(name) for name in settings.scenarios]
    protocol = Protocol(
        loads=settings.loads,
        seeds=tuple(range(settings.seeds)),
        requests=settings.scenario_requests,
        window_s=0.0,
        warmup_s=settings.warmup_s,
        length=challenger.length,
    )
    total = 2 * streams + (run_count(2, len(scenarios), protocol) if scenarios else 0)
    done = 0.0

    def advance(runs: float) -> None:
        nonlocal done
        done += runs
        tell(min(done / total, 1.0), f"{total} paired runs")

    log = replay(
        replace(world, trace=held),
        champion,
        challenger,
        seeds=tuple(range(streams)),
        requests=settings.requests,
        jobs=jobs,
        on_progress=lambda runs: advance(2 * runs),
    )
    table = None
    if scenarios:
        both = {CHAMPION: champion.policy, CHALLENGER: challenger.policy}
        table = evaluate(both, scenarios, protocol, jobs=jobs, on_progress=advance)
    evidence = judge(
        log,
        table,
        fidelity,
        settings,
        champion=champion.version,
        challenger=challenger.version,
        now_unix_s=now_unix_s,
    )
    return Comparison(log, table, fidelity, evidence)


def judge(
    log: EvaluationTable,
    scenarios: EvaluationTable | None,
    fidelity: tuple[ErrorLine, ...],
    settings: ComparisonSettings,
    *,
    champion: str,
    challenger: str,
    now_unix_s: float,
) -> Evidence:
    """The verdict that the runs allow, and why."""
    own = log.ratio(CHALLENGER, CHAMPION)
    figures = {"j_ratio.log": own.value, "j_ratio.log.lo": own.lo, "j_ratio.log.hi": own.hi}
    for figure in ("ttft_p99_s", "e2e_p99_s"):
        figures[f"{figure}_ratio.log"] = log.ratio(CHALLENGER, CHAMPION, figure=figure).value
    verdict, said = _of_ratio(own)
    reasons = [f"on {settings.streams} streams of held-out log, J ratio {own}: {said}"]
    if scenarios is not None:
        other = scenarios.ratio(CHALLENGER, CHAMPION)
        figures |= {
            "j_ratio.scenarios": other.value,
            "j_ratio.scenarios.lo": other.lo,
            "j_ratio.scenarios.hi": other.hi,
        }
        too_bad = other.value > 1.0 + settings.scenario_margin and other.lo > 1.0
        reasons.append(
            f"on {', '.join(settings.scenarios)}, J ratio {other}: "
            f"{'clearly worse' if too_bad else 'within what is allowed'}"
        )
        if too_bad:
            verdict = "worse"
    overruled = log.overruled(CHALLENGER)
    figures["overruled_share.log"] = overruled
    if overruled > MOST_OVERRULED and verdict != "worse":
        verdict = "insufficient"
        reasons.append(f"the guard decided in its place in {overruled:.0%} of all cases")
    off = {line.figure: line.after for line in fidelity}
    figures |= {f"fidelity.{name}": error for name, error in off.items()}
    wrong = [f"{name} {off[name]:+.0%}" for name in FAITHFUL if abs(off.get(name, 1.0)) > MOST_ERROR]
    if wrong and verdict != "worse":
        verdict = "insufficient"
        reasons.append(f"the model of the cluster is too far from what was measured: {', '.join(wrong)}")
    if settings.streams < LEAST_STREAMS and verdict in {"better", "no_worse"}:
        verdict = "insufficient"
        reasons.append(f"{settings.streams} streams claim nothing, {LEAST_STREAMS} are needed")
    return Evidence(
        kind="evaluation",
        challenger=challenger,
        champion=champion,
        verdict=verdict,
        reasons=tuple(reasons),
        figures=figures,
        made_unix_s=now_unix_s,
        by="retrain",
    )


def _of_ratio(ratio: Ratio) -> tuple[Verdict, str]:
    if ratio.hi < 1.0:
        return "better", "better"
    if ratio.lo > 1.0:
        return "worse", "worse"
    if ratio.hi < 1.0 + MARGIN:
        return "no_worse", f"not worse by more than {MARGIN:.0%}"
    return "insufficient", "the streams cannot tell them apart"
