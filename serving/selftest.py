"""What a policy has to show before it decides about traffic: finite scores, in time.

Its parity rows have been compared when it was loaded (`predictors/onnx_model.py`). Here it is asked
about a pool at the middle and at both ends of the ranges it was trained on.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from steersman.agents.learned.served import LearnedPolicy
from steersman.predictors.features import REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Observation

REPLICAS = 16
RUNS = 15
"""The fastest counts: on a busy machine the others tell of the machine."""
_MOST = 1e6
"""Ranges without an end are asked about up to here."""


def check_policy(model: OnnxModel, budget_ms: float) -> None:
    """Ask it.

    Args:
        model: a policy graph.
        budget_ms: most time for one decision; 0: any.

    Raises:
        ArtifactError: its ranges make no sense, its scores are not finite, or it takes too long.
    """
    policy = LearnedPolicy(model, np.random.default_rng(0))
    fastest_s = np.inf
    for share in (0.0, 0.5, 1.0):
        seen = _observation(model, share)
        for _ in range(RUNS):
            start = perf_counter()
            scores = policy.head_scores(seen)
            fastest_s = min(fastest_s, perf_counter() - start)
        if not np.isfinite(scores).all():
            raise ArtifactError(
                f"{model.source}: its scores are not finite within the ranges it was trained on; "
                "train or export it anew"
            )
    if budget_ms and 1000.0 * fastest_s > budget_ms:
        raise ArtifactError(
            f"{model.source}: takes {1000.0 * fastest_s:.2f} ms for {REPLICAS} replicas, "
            f"bundle.latency_budget_ms allows {budget_ms:g}; train a smaller one, or raise it"
        )


def _observation(model: OnnxModel, share: float) -> Observation:
    """So far from the lower to the upper end of every range; all replicas alike."""
    lower, upper = (
        np.clip(bound, -_MOST, _MOST) for bound in (model.metadata.lower, model.metadata.upper)
    )
    row = (lower + share * (upper - lower)).astype(np.float32)
    replica, request, pool = np.split(
        row, [len(REPLICA_FEATURES), len(REPLICA_FEATURES) + len(REQUEST_FEATURES)]
    )
    mask = np.ones(REPLICAS, dtype=np.bool_)
    return Observation(np.tile(replica, (REPLICAS, 1)), request, pool, mask)
