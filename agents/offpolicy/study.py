"""Everything that shadow mode finds out about a challenger, from a log, and the evidence it makes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.evidence import Evidence
from steersman.agents.guard import GuardSettings
from steersman.agents.offpolicy.accuracy import Accuracy, accuracy
from steersman.agents.offpolicy.agreement import Agreement, agreement
from steersman.agents.offpolicy.contestants import Contestant, bundle_contestant
from steersman.agents.offpolicy.learning import Learning, learning
from steersman.agents.offpolicy.matched import Matched, match
from steersman.agents.offpolicy.ope import OffPolicy, off_policy
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION, MOST_REQUESTS, SEEDS, replay
from steersman.agents.offpolicy.verdict import Thresholds, judge, worst_error
from steersman.agents.offpolicy.world import World, build_world
from steersman.agents.shadow.challenger import Challenger
from steersman.env.calibrate import ErrorLine
from steersman.predictors.bundle import Bundle
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.shadow_record import ShadowRecord

log = logging.getLogger(__name__)

LEAST_SINCE = 300
"""Requests since the last drift from which on the cluster is modelled on them alone."""


@dataclass(frozen=True)
class StudySettings:
    """How it is done."""

    seeds: tuple[int, ...] = SEEDS
    """Streams of the replay."""
    requests: int = MOST_REQUESTS
    """Of a stream, at most."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    guard: GuardSettings = field(default_factory=GuardSettings)
    """With which the challenger would serve."""
    jobs: int = 1


@dataclass(frozen=True)
class Study:
    """What was found."""

    model: str
    champion: str
    challenger: str
    records: int
    """Of the model, in the log's window."""
    span_s: float
    """From the first arrival to the last."""
    matched: Matched
    agreement: Agreement | None
    """None without decisions."""
    accuracies: tuple[Accuracy, ...]
    """On what was done, whoever would have done it."""
    agreed: tuple[Accuracy, ...]
    """Only where both choose the same."""
    ope: OffPolicy
    world: World | None
    fidelity: tuple[ErrorLine, ...]
    table: EvaluationTable | None
    """The replay; None without a world."""
    learning: Learning
    notes: tuple[str, ...]
    evidence: Evidence

    def ratio(self, figure: str = "j") -> Ratio | None:
        """Of the replay: challenger over champion."""
        if self.table is None:
            return None
        return self.table.ratio(CHALLENGER, CHAMPION, figure=figure)


def study(
    records: Sequence[OutcomeRecord],
    opinions: Mapping[tuple[str, float], ShadowRecord],
    challenger: Bundle,
    champion: Contestant,
    settings: StudySettings | None = None,
    *,
    model: str = "",
    now_unix_s: float,
    on_progress: Callable[[float], None] | None = None,
) -> Study:
    """Study a challenger.

    Args:
        records: of the outcome log, of any models.
        opinions: of the challenger, by decision; what is missing is asked for now.
        model: whose pool is looked at; empty: the one with most records.
        now_unix_s: for the evidence.
        on_progress: told how many streams of the replay have been played.

    Raises:
        ConfigError: no record of the model.
        ArtifactError: the challenger cannot be served.
    """
    settings = settings or StudySettings()
    notes: list[str] = []
    own = _of_model(records, model, notes)
    rival = bundle_contestant(challenger, settings.guard)
    matched = match(own, opinions, Challenger(challenger, settings.guard))
    learned = learning(own)
    world: World | None = None
    table: EvaluationTable | None = None
    fidelity: tuple[ErrorLine, ...] = ()
    no_replay = ""
    try:
        world = build_world(_since_drift(own, learned, notes))
        fidelity = world.fidelity()
        table = replay(
            world,
            champion,
            rival,
            seeds=settings.seeds,
            requests=settings.requests,
            jobs=settings.jobs,
            on_progress=on_progress,
        )
    except ConfigError as error:
        no_replay = str(error)
    ope = off_policy(matched)
    accuracies = accuracy(matched)
    ratio = None if table is None else table.ratio(CHALLENGER, CHAMPION)
    verdict, reasons = judge(
        matched,
        ratio,
        fidelity,
        accuracies,
        ope,
        settings.thresholds,
        no_replay=no_replay,
        overruled=0.0 if table is None else table.overruled(CHALLENGER),
    )
    shares = agreement(matched) if len(matched) else None
    evidence = Evidence(
        kind="shadow",
        challenger=challenger.version,
        champion=champion.version,
        verdict=verdict,
        reasons=reasons,
        figures=_figures(matched, shares, table, fidelity, accuracies, ope, learned),
        made_unix_s=now_unix_s,
        by="steersman shadow report",
    )
    arrivals = [record.arrival_unix_s for record in own]
    return Study(
        model=own[0].model,
        champion=champion.version,
        challenger=challenger.version,
        records=len(own),
        span_s=max(arrivals) - min(arrivals),
        matched=matched,
        agreement=shares,
        accuracies=accuracies,
        agreed=accuracy(matched, agreed=True),
        ope=ope,
        world=world,
        fidelity=fidelity,
        table=table,
        learning=learned,
        notes=tuple(notes),
        evidence=evidence,
    )


def _of_model(records: Sequence[OutcomeRecord], model: str, notes: list[str]) -> list[OutcomeRecord]:
    counts = Counter(record.model for record in records)
    if not counts:
        raise ConfigError("the log holds no records; let the router serve first")
    if model and model not in counts:
        raise ConfigError(f"the log holds no request for model '{model}'; it has {', '.join(counts)}")
    chosen = model or counts.most_common(1)[0][0]
    if len(counts) > 1:
        others = ", ".join(sorted(name for name in counts if name != chosen))
        notes.append(f"only requests for '{chosen}' are looked at; the log also has {others}")
    return [record for record in records if record.model == chosen]


def _since_drift(
    records: list[OutcomeRecord], learned: Learning, notes: list[str]
) -> list[OutcomeRecord]:
    """What the cluster is modelled on: since latencies last changed, where that is enough."""
    since = [record for record in records if record.arrival_unix_s >= learned.changed_unix_s]
    if len(since) == len(records):
        return records
    if len(since) < LEAST_SINCE:
        notes.append(
            f"predictions drifted, and only {len(since)} requests came since: the cluster is modelled "
            "on all of the log, before and after"
        )
        return records
    notes.append(f"predictions drifted: the cluster is modelled on the {len(since)} requests since")
    return since


def _figures(
    matched: Matched,
    shares: Agreement | None,
    table: EvaluationTable | None,
    fidelity: Sequence[ErrorLine],
    accuracies: Sequence[Accuracy],
    ope: OffPolicy,
    learned: Learning,
) -> dict[str, float]:
    """Numbers by name, for machines."""
    figures: dict[str, float] = {
        "decisions": float(len(matched)),
        "live": float(matched.live),
        "failed": float(matched.failed),
        "drift_alarms": float(len(learned.alarms)),
    }
    if shares is not None:
        figures["agreement_share"] = shares.overall.agree
        figures["fallback_share"] = sum(shares.fallbacks.values())
    if table is not None:
        figures["replay.fallback_share"] = table.overruled(CHALLENGER)
        for figure in ("j", "j1", "ttft_p50_s", "ttft_p99_s", "e2e_p99_s"):
            ratio = table.ratio(CHALLENGER, CHAMPION, figure=figure)
            name = f"replay.{figure.removesuffix('_s')}_ratio"
            figures |= {name: ratio.value, f"{name}.lo": ratio.lo, f"{name}.hi": ratio.hi}
    worst = worst_error(fidelity)
    if worst is not None:
        figures["replay.worst_model_error_share"] = abs(worst.after)
    for each in accuracies:
        name = f"predictions.{each.target}"
        figures |= {
            f"{name}.mdape": each.challenger.mdape,
            f"{name}.champion_mdape": each.champion.mdape,
            f"{name}.within_p90_share": each.challenger.within_p90,
            f"{name}.loss_ratio": each.loss.value,
        }
    for estimator, one in ope.estimates.items():
        name = f"ope.{estimator}_ratio"
        figures |= {name: one.ratio.value, f"{name}.lo": one.ratio.lo, f"{name}.hi": one.ratio.hi}
        figures |= {"ope.effective_decisions": one.effective, "ope.clipped_share": one.clipped}
    return figures
