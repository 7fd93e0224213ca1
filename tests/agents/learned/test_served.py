from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.policy_checker import check_policy
from steersman.agents.samples import sample_observation
from steersman.predictors.bundle import Bundle, write_bundle
from steersman.traces.errors import ArtifactError
from tests.parity.test_policy import GRAPH, MODEL


def make_bundle(directory: Path, files: dict[str, bytes]) -> Bundle:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return write_bundle(directory, files, version="b1", code_version="0", created=created)


def make_policy(seed: int) -> LearnedPolicy:
    return LearnedPolicy(MODEL, np.random.default_rng(seed))


def test_keeps_the_policy_contract() -> None:
    check_policy(make_policy)


def test_chooses_the_best_mean_over_the_heads() -> None:
    policy = make_policy(0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        observation = sample_observation(rng, 6)
        heads = policy.head_scores(observation)
        decision = policy.decide(observation)
        assert decision.choice == int(heads.mean(axis=0).argmax())
        assert decision.propensity == 1.0
        assert decision.version == "test-1"


def test_comes_out_of_a_bundle(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", {"policy.onnx": GRAPH})
    policy = LearnedPolicy.from_bundle(bundle, np.random.default_rng(0))
    assert policy.version == "test-1"


def test_a_bundle_without_a_policy_is_refused_in_one_line(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", {"length.onnx": b"x"})
    with pytest.raises(ArtifactError, match=r"has no policy\.onnx; train one"):
        LearnedPolicy.from_bundle(bundle, np.random.default_rng(0))
