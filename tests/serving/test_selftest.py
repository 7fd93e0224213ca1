"""What is asked of a bundle before it serves, and what serves while it is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steersman.agents.learned.served import KIND, POLICY_FEATURES
from steersman.agents.learned.shipped import load_shipped
from steersman.predictors.bundle import POLICY_FILE, write_bundle
from steersman.predictors.onnx_model import OnnxModel
from steersman.serving.models import load_models
from steersman.serving.selftest import check_policy
from steersman.traces.errors import ArtifactError
from tests.serving.backends import completion, whole
from tests.serving.graphs import policy_bundle, policy_graph
from tests.serving.harness import eventually, rig

GOOD = whole(completion())


def parse(graph: bytes) -> OnnxModel:
    return OnnxModel.parse(graph, kind=KIND, features=POLICY_FEATURES, source="test")


def test_a_policy_that_answers_in_time_passes() -> None:
    check_policy(parse(policy_graph("v1")), 1000.0)
    check_policy(parse(load_shipped().contents[POLICY_FILE]), 1000.0)


def test_scores_that_are_no_numbers_within_its_ranges_are_refused() -> None:
    """Its parity rows are fine: they lie elsewhere."""
    with pytest.raises(ArtifactError, match="not finite within the ranges"):
        check_policy(parse(policy_graph("v1", "Sqrt")), 0.0)


def test_a_policy_that_takes_too_long_is_refused() -> None:
    model = parse(policy_graph("v1"))
    with pytest.raises(ArtifactError, match=r"takes .* ms for 16 replicas, bundle.latency_budget_ms"):
        check_policy(model, 1e-6)
    check_policy(model, 0.0)


def write_bad(directory: Path) -> None:
    write_bundle(
        directory,
        {POLICY_FILE: policy_graph("bad", "Sqrt")},
        version="bad",
        code_version="0",
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def test_what_is_refused_keeps_the_old_one_also_across_restarts(tmp_path: Path) -> None:
    directory, kept = tmp_path / "champion", tmp_path / "kept"
    policy_bundle(directory, "v1")
    sections: dict[str, Any] = {
        "policy": {"name": "learned"},
        "bundle": {
            "directory": str(directory),
            "watch_interval_s": 0.02,
            "keep_directory": str(kept),
            "latency_budget_ms": 0,
        },
    }
    async with rig(GOOD, **sections) as (router, _):
        assert router.parts.models.version == "v1"
        write_bad(directory)
        await eventually(lambda: router.parts.metrics.bundle_ok._value.get() == 0.0, within_s=60.0)
        assert router.parts.models.version == "v1"
        assert await router.metric('steersman_bundle_loads_total{result="refused"}') == 1.0
    assert load_models(kept).version == "v1"
    async with rig(GOOD, **sections) as (router, _):
        assert router.parts.models.version == "v1"
        assert await router.metric("steersman_bundle_ok") == 0.0
        assert (await router.post())[0] == 200
        policy_bundle(directory, "v2")
        await eventually(lambda: router.parts.models.version == "v2", within_s=60.0)
        assert await router.metric("steersman_bundle_ok") == 1.0
        await eventually(lambda: load_models(kept).version == "v2", within_s=60.0)


async def test_a_place_to_keep_it_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    policy_bundle(tmp_path / "champion", "v1")
    (tmp_path / "file").write_text("in the way")
    bundle = {"directory": str(tmp_path / "champion"), "keep_directory": str(tmp_path / "file" / "x")}
    async with rig(GOOD, policy={"name": "learned"}, bundle=bundle) as (router, _):
        assert router.parts.models.version == "v1"
