"""The off-policy estimates of a challenger on matched decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.offpolicy.cost_model import cost_terms, cross_fitted
from steersman.agents.offpolicy.estimators import CLIP, Estimate, Logged, estimate
from steersman.agents.offpolicy.matched import Matched
from steersman.predictors.features import replica_features
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.shadow_record import ShadowRecord

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class OffPolicy:
    """What the log says of the challenger's costs, one request at a time."""

    estimates: dict[str, Estimate]
    """Empty where nothing can be said."""
    decisions: int
    """Whose cost and propensity are known."""
    logged_cost: float
    """Their mean, class weights included; NaN without any."""
    explored: float
    """Share of them that were improbable (a propensity under a half)."""
    note: str = ""
    """Why nothing can be said."""


def off_policy(matched: Matched, *, clip: float = CLIP, seed: int = 0) -> OffPolicy:
    """Estimate on what streamed, first attempts, and ended well or broke."""
    propensity = np.array([record.propensity for record in matched.records])
    usable = np.isfinite(matched.cost) & (propensity > 0.0) & (propensity <= 1.0)
    rows = np.flatnonzero(usable)
    if not len(rows):
        return OffPolicy({}, 0, float("nan"), 0.0, "no decision with a known cost and propensity")
    weight = matched.weight[rows]
    cost = matched.cost[rows] * weight / weight.mean()
    terms = [_terms(matched.records[row], matched.opinions[row]) for row in rows.tolist()]
    done, others = (np.stack(column) for column in zip(*((a, b) for a, b, _ in terms), strict=True))
    chance = np.array([c for _, _, c in terms])
    scale = weight / weight.mean()
    modelled, expected = cross_fitted(done, others, matched.cost[rows])
    logged = Logged(cost, propensity[rows], chance, modelled * scale, expected * scale)
    try:
        estimates, note = estimate(logged, clip=clip, seed=seed), ""
    except ConfigError as error:
        estimates, note = {}, str(error)
    explored = float((propensity[rows] < 0.5).mean())
    return OffPolicy(estimates, len(rows), float(cost.mean()), explored, note)


def _terms(record: OutcomeRecord, said: ShadowRecord) -> tuple[Float64, Float64, float]:
    """Terms of what was done, of what the challenger would have done on average, and its chance of the
    former. Where only its drawn choice is known, that stands for the average: no bias, more noise."""
    replicas = replica_features(
        record.state, record.request_features, record.match_tokens, np.array(record.decided_at_s)
    )
    terms = cost_terms(replicas, record.request_features)
    if said.probabilities is None:
        return terms[record.choice], terms[said.choice], float(said.choice == record.choice)
    probabilities = said.probabilities.astype(np.float64)
    return terms[record.choice], probabilities @ terms, float(probabilities[record.choice])
