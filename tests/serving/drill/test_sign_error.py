"""A policy that prefers what it should avoid, and loads all the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.samples import sample_observation
from steersman.predictors.bundle import load_bundle
from steersman.serving.drill.sign_error import with_sign_error

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_it_loads_and_prefers_what_it_should_avoid(tmp_path: Path) -> None:
    sound = load_shipped()
    made = with_sign_error(sound, tmp_path / "bad", now=NOW)
    bad = load_bundle(tmp_path / "bad")
    assert bad.version == made.version == "20260101-000000-sign-error"
    assert bad.manifest.trained_on["parent"] == sound.version
    policies = [LearnedPolicy.from_bundle(one, np.random.default_rng(0)) for one in (sound, bad)]
    rng = np.random.default_rng(1)
    for _ in range(20):
        seen = sample_observation(rng, 6)
        straight, turned = (policy.head_scores(seen) for policy in policies)
        allowed = seen.mask
        np.testing.assert_allclose(turned[:, allowed], -straight[:, allowed], rtol=1e-5)
        assert (turned[:, ~allowed] < -1e8).all()
        if allowed.any():
            assert allowed[policies[1].decide(seen).choice]
