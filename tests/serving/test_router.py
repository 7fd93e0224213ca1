"""A decision: what goes into it, and who may be chosen."""

from __future__ import annotations

import numpy as np
import pytest

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.predictors.features import REQUEST_INDEX
from steersman.predictors.objectives import slo_s
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.headers import NO_HINTS, Hints
from steersman.serving.parts import Parts, build_parts
from steersman.serving.router import Prepared
from steersman.traces.schema import Request
from tests.serving.harness import settings_for


def parts_for(policy: str = "least-connections", replicas: int = 3) -> Parts:
    listed = [{"url": f"http://r{i}", "models": ["m"]} for i in range(replicas)]
    return build_parts(settings_for([], backends=listed, policy={"name": policy}))


def prepare(parts: Parts, hints: Hints = NO_HINTS) -> Prepared:
    request = Request("r", parts.clock(), 500, max_tokens=64, model="m")
    return parts.router.prepare(request, parts.fleet.pools["m"], hints)


def test_objectives_of_the_client_come_first() -> None:
    parts = parts_for()
    usual = prepare(parts).features
    asked = prepare(parts, Hints(ttft_slo_s=0.25)).features
    assert usual[REQUEST_INDEX["ttft_slo_s"]] == pytest.approx(1.0)
    assert asked[REQUEST_INDEX["ttft_slo_s"]] == pytest.approx(0.25)
    assert asked[REQUEST_INDEX["tpot_slo_s"]] == usual[REQUEST_INDEX["tpot_slo_s"]]


def test_objectives_are_those_of_the_pool_of_the_moment() -> None:
    parts = parts_for()
    fleet, ttft_slo = parts.fleet, REQUEST_INDEX["ttft_slo_s"]
    request = Request("r", parts.clock(), 30_000, model="m")

    def ttft_slo_s() -> float:
        pool = fleet.pools["m"]
        expected, _ = slo_s(fleet.state[pool.rows], 30_000.0)
        for _ in range(2):
            found = parts.router.prepare(request, pool, NO_HINTS).features[ttft_slo]
            assert found == pytest.approx(expected)
        return expected

    before = ttft_slo_s()
    for i in range(5):
        fleet.add(
            BackendSettings(url=f"http://slow{i}", models=("m",)), load_profile("l40s-llama-3.1-8b")
        )
    assert ttft_slo_s() > before


def test_the_limit_of_the_client_bounds_the_prediction() -> None:
    prepared = prepare(parts_for())
    assert 1.0 <= prepared.output_p50 <= prepared.output_p90 <= 64.0


def test_the_busy_are_avoided() -> None:
    parts = parts_for()
    for replica in (0, 2):
        L.on_dispatch(parts.fleet.state[replica], 100, 100, 50)
    route = parts.router.choose(prepare(parts))
    assert route is not None
    assert route.replica.id == "r1"


@pytest.mark.parametrize("policy", ["least-connections", "p2c", "marginal-cost", "learned"])
def test_only_candidates_are_chosen(policy: str) -> None:
    parts = parts_for(policy, 5)
    fleet = parts.fleet
    fleet.set_healthy(fleet.replicas[0], healthy=False)
    fleet.replicas[1].resting_until_s = parts.clock() + 1000.0
    fleet.state[2, L.DRAINING] = 1.0
    chosen = set()
    for _ in range(20):
        prepared = prepare(parts)
        prepared.excluded[3] = True
        route = parts.router.choose(prepared)
        assert route is not None
        chosen.add(route.replica.id)
        assert route.observation.mask.tolist() == [False] * 4 + [True]
    assert chosen == {"r4"}


def test_nobody_may_be_left() -> None:
    parts = parts_for()
    prepared = prepare(parts)
    prepared.excluded[:] = True
    assert parts.router.choose(prepared) is None


def test_warming_up_leaves_no_trace() -> None:
    parts = parts_for("round-robin")
    before = parts.fleet.state.copy()
    parts.router.warm_up()
    np.testing.assert_array_equal(parts.fleet.state, before)
    route = parts.router.choose(prepare(parts))
    assert route is not None
    assert route.replica.id == "r0"
