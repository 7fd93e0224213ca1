"""The rule that serves at first."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.samples import sample_observation
from steersman.predictors.bundle import load_bundle
from steersman.predictors.features import REPLICA_INDEX
from steersman.serving.drill.incumbent import incumbent


def test_it_chooses_the_least_requests_by_the_speed_of_the_hardware(tmp_path: Path) -> None:
    incumbent(tmp_path / "rule", now=datetime(2026, 1, 1, tzinfo=UTC))
    bundle = load_bundle(tmp_path / "rule")
    assert bundle.version == "20260101-000000-weighted-least-requests"
    policy = LearnedPolicy.from_bundle(bundle, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for _ in range(20):
        seen = sample_observation(rng, 5)
        if not seen.mask.any():
            continue
        inflight, iteration_s = (
            seen.replicas[:, REPLICA_INDEX[name]] for name in ("inflight", "decode_base_s")
        )
        cost = np.where(seen.mask, (inflight + 1.0) * iteration_s, np.inf)
        assert policy.decide(seen).choice == int(cost.argmin())
