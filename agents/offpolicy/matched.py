"""Logged decisions, each with what the challenger says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.cost import request_costs
from steersman.agents.shadow.challenger import Case, Challenger
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import CLASS_WEIGHTS, Status
from steersman.traces.shadow_record import ShadowRecord

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

CHECKED = 200
"""Opinions given live that are asked for again, to see whether the log tells all that was known."""
CHALLENGER_ARM = "challenger"


@dataclass(frozen=True)
class Matched:
    """n decisions in order of arrival, all of one model."""

    records: tuple[OutcomeRecord, ...]
    opinions: tuple[ShadowRecord, ...]
    live: int
    """Of the opinions: given while the request was served; the others were asked for now."""
    failed: int
    """Decisions on which the challenger failed; they are not among the n."""
    passed_over: int
    """Records without a decision of the champion: refused, logged by another version, or served by the
    challenger itself in a canary."""
    checked: int
    """Live opinions of the policy itself, no fallback, that were asked for again."""
    differing: int
    """Of those, where the challenger would now choose otherwise."""

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def agrees(self) -> Bools:
        """(n,) where both choose the same."""
        return np.array([opinion.agrees for opinion in self.opinions], dtype=np.bool_)

    @cached_property
    def arrival_unix_s(self) -> Float64:
        """(n,)"""
        return np.array([record.arrival_unix_s for record in self.records])

    @cached_property
    def weight(self) -> Float64:
        """(n,) of the request's class."""
        return np.array([CLASS_WEIGHTS[record.priority] for record in self.records])

    @cached_property
    def cost(self) -> Float64:
        """(n,) of what came of it (EVALUATION, "Cost"); NaN where it cannot be said: cancelled, a second
        attempt, or not streamed."""
        columns = ("ttft_s", "tpot_s", "ttft_slo_s", "tpot_slo_s")
        ttft, tpot, ttft_slo, tpot_slo = (
            np.array([getattr(record, name) for record in self.records]) for name in columns
        )
        well = np.array([record.status is Status.OK for record in self.records], dtype=np.bool_)
        known = np.isfinite(ttft) & np.isfinite(tpot) & (ttft_slo > 0.0) & (tpot_slo > 0.0)
        broke = np.array([record.status is Status.FAILED for record in self.records], dtype=np.bool_)
        first = np.array([record.retries == 0 for record in self.records], dtype=np.bool_)
        with np.errstate(invalid="ignore", divide="ignore"):
            cost = request_costs(well, ttft, tpot, ttft_slo, tpot_slo)
        return np.where(first & ((well & known) | broke), cost, math.nan)


def match(
    records: Sequence[OutcomeRecord],
    opinions: Mapping[tuple[str, float], ShadowRecord],
    challenger: Challenger,
) -> Matched:
    """Join a log with opinions; those that nobody gave are asked for now.

    Args:
        records: of one model.
        opinions: of this challenger, by decision (`read_shadow`).
    """
    pairs: list[tuple[OutcomeRecord, ShadowRecord]] = []
    live = failed = passed_over = checked = differing = 0
    for record in sorted(records, key=lambda record: record.arrival_unix_s):
        case = Case.of(record) if record.arm != CHALLENGER_ARM else None
        if case is None:
            passed_over += 1
            continue
        said = opinions.get((record.request_id, record.decided_at_s))
        given = said is not None
        if said is None:
            said = _ask(challenger, case)
        elif checked < CHECKED and not said.error and not said.fallback_reason:
            # Only where the policy itself spoke: its guard remembers, and a fallback may draw.
            again = _ask(challenger, case)
            if not (again.error or again.fallback_reason):
                checked += 1
                differing += again.choice != said.choice
        if said.error or said.choice < 0:
            failed += 1
            continue
        live += given
        pairs.append((record, said))
    return Matched(
        records=tuple(record for record, _ in pairs),
        opinions=tuple(said for _, said in pairs),
        live=live,
        failed=failed,
        passed_over=passed_over,
        checked=checked,
        differing=differing,
    )


def _ask(challenger: Challenger, case: Case) -> ShadowRecord:
    try:
        return challenger.opinion(case)
    except Exception as error:  # whatever a model can throw is a finding, not an end
        return challenger.failed(case, error)
