"""`benchmarks/deciding.py` measures the router of today: the shipped policy behind its guard."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from steersman.serving import router as router_module
from steersman.traces.readers import load_trace

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "data" / "azure2023_conv_excerpt.csv"
PROFILES = ["a100-llama-3.1-8b", "h100-llama-3.1-8b", "l40s-llama-3.1-8b"]
REPLICAS, CALLS = 3, 25


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("deciding")


@pytest.mark.parametrize("policy", ["learned", "p2c"])
def test_every_decision_is_timed(deciding: ModuleType, policy: str) -> None:
    world = deciding.World(PROFILES, 1.0, load_trace(TRACE))
    traffic = deciding.Traffic(world, REPLICAS, policy, None, compiled=False)
    deciding.take_turns([traffic], CALLS)
    figures = deciding.decision_figures(traffic, "{}.x")
    assert set(figures) == {
        *(f"decision_{of}p{level}_us.x" for of in ("", "cpu_") for level in (50, 99)),
        "afterwards_p50_us.x",
    }
    assert all(value > 0.0 for value in figures.values())
    decision = traffic.step().decision
    assert (decision.policy, decision.fallback_reason) == (policy, "")


def test_the_stages_of_the_shipped_policy_are_told_apart(deciding: ModuleType) -> None:
    traffic = deciding.Traffic(
        deciding.World(PROFILES, 1.0, load_trace(TRACE)), REPLICAS, "learned", None, compiled=False
    )
    before = vars(router_module).copy()
    stages = deciding.stage_figures(traffic, CALLS, str(REPLICAS))
    assert traffic.fallback_share == 0.0
    median = {name.split(".")[1] for name, value in stages.items() if value > 0.0}
    assert median >= {"features", "length_model", "snapshot", "observe", "policy_graph", "guard"}
    assert vars(router_module) == before, "what was watched is as it was"
    alone = deciding.plain_figures(traffic.step().observation, CALLS, REPLICAS)
    assert alone["onnxruntime_p50_us.3"] > 0.0
