"""Why this replica: a decision with its candidates, what each would have cost, and the reason in words.

Nothing is remembered for it: the observation follows from what the outcome log holds of a decision, by
the functions that made it (`env/observation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steersman.agents.explain.candidate import Candidate
from steersman.agents.explain.reasons import outcome, reasons
from steersman.agents.policies.marginal import weighted_terms
from steersman.agents.policy import NO_CANDIDATE
from steersman.env.observation import observe
from steersman.predictors import ledger as L
from steersman.predictors.features import COST_TERMS, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.traces.errors import TraceError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import ClusterSnapshot, Decision, Observation


@dataclass(frozen=True)
class Explanation:
    """A decision, explained."""

    request_id: str
    model: str
    policy: str
    """Who decided in the end."""
    policy_version: str
    propensity: float
    fallback_reason: str
    replica: str
    """The chosen one; empty if there was none."""
    candidates: tuple[Candidate, ...]
    """From best to worst by score, or by marginal cost where the policy does not score; then those that
    could not be chosen."""
    request: dict[str, float]
    """All of `REQUEST_FEATURES`."""
    reasons: tuple[str, ...]
    """Sentences."""


def explain(
    observation: Observation, decision: Decision, snapshot: ClusterSnapshot, *, request_id: str = ""
) -> Explanation:
    """Explain a decision.

    Args:
        observation: what the policy saw, of a single decision.
        decision: what it made of it; of any policy.
        snapshot: of the same pool at the same moment.
    """
    terms = weighted_terms(observation.replicas)
    scores = decision.scores
    candidates = [
        Candidate(
            replica,
            i == decision.choice,
            _barred(bool(observation.mask[i]), snapshot.state[i]),
            None if scores is None or not observation.mask[i] else float(scores[i]),
            dict(zip(REPLICA_FEATURES, observation.replicas[i].tolist(), strict=True)),
            dict(zip(COST_TERMS, terms[i].tolist(), strict=True)),
        )
        for i, replica in enumerate(snapshot.replica_ids)
    ]
    request = dict(zip(REQUEST_FEATURES, observation.request.tolist(), strict=True))
    ordered = sorted(candidates, key=lambda candidate: candidate.rank)
    chosen = "" if decision.choice == NO_CANDIDATE else snapshot.replica_ids[decision.choice]
    return Explanation(
        request_id=request_id,
        model=snapshot.model,
        policy=decision.policy,
        policy_version=decision.version,
        propensity=decision.propensity,
        fallback_reason=decision.fallback_reason,
        replica=chosen,
        candidates=tuple(ordered),
        request=request,
        reasons=tuple(reasons(ordered, decision)),
    )


def explain_record(record: OutcomeRecord) -> Explanation:
    """Explain a logged decision: the last one of its request, if there were several.

    Raises:
        TraceError: no decision was made, or another version logged it, whose features are others.
    """
    n, known = len(record.replica_ids), record.request_features.shape == (len(REQUEST_FEATURES),)
    if not n:
        why = f" ({record.error})" if record.error else ""
        raise TraceError(f"request '{record.request_id}' ended before a replica was chosen{why}")
    if not known or record.state.shape != (n, L.STATE_WIDTH):
        raise TraceError(
            f"request '{record.request_id}' was logged by another version of Steersman, whose features "
            "are others; explain it with that version"
        )
    observation = observe(
        record.state,
        record.request_features,
        record.match_tokens,
        np.array(record.decided_at_s),
        ~record.mask,
    )
    decision = Decision(
        record.choice,
        record.policy,
        record.policy_version,
        record.propensity,
        record.fallback_reason,
        record.scores,
    )
    snapshot = ClusterSnapshot(record.decided_at_s, record.model, record.replica_ids, record.state)
    explained = explain(observation, decision, snapshot, request_id=record.request_id)
    return replace(explained, reasons=(*explained.reasons, *outcome(record)))


def _barred(allowed: bool, row: NDArray[np.float64]) -> str:
    if allowed:
        return ""
    if row[L.HEALTHY] <= 0.0:
        return "down"
    return "draining" if row[L.DRAINING] > 0.0 else "tried, resting or silent"
