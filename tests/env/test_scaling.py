from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.lifecycle import Phase
from steersman.env.scaling import SCALING_FEATURES, SCALING_INDEX, Scaling, ScalingRules
from steersman.env.scaling_batch import Route, ScalingBatch, least_marginal_cost
from steersman.env.scaling_episodes import SwingSampler, swing
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ChangeKind, Conditions, ReplicaChange
from steersman.traces.schema import Observation
from tests.env.worlds import request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=6400, max_num_seqs=8, max_batched_tokens=512)
HOUR_USD = PROFILE.cost_per_hour
RULES = ScalingRules(interval_s=10.0, changes=(-2, -1, 0, 1, 2), cooldown_s=15.0)
DOWN2, DOWN1, HOLD, UP1, UP2 = range(5)


def world(
    serving: int = 1, size: int = 4, gap_s: float = 1.0, count: int = 100, fails_s: float | None = None
) -> Cluster:
    replicas = tuple(
        replace(spec, standby=number >= serving, cold_start_s=20.0)
        for number, spec in enumerate(specs(*[PROFILE] * size))
    )
    trace = trace_of(*(request(i, gap_s * i, 100, 40) for i in range(count)))
    last = serving - 1
    changes = () if fails_s is None else (ReplicaChange(fails_s, last, ChangeKind.FAIL),)
    return Cluster(replicas, trace, seed=1, conditions=Conditions(changes=changes))


def step(scaling: Scaling, action: int, route: Route = least_marginal_cost) -> float:
    batch = ScalingBatch([scaling], route, most_replicas=len(scaling.cluster.replicas))
    return float(batch.step([action])[0])


def seen(scaling: Scaling, name: str) -> float:
    return float(scaling.observe()[SCALING_INDEX[name]])


def test_growth_takes_a_cold_start_and_the_cooldown() -> None:
    scaling = Scaling(world(), RULES)
    assert (seen(scaling, "desired"), seen(scaling, "serving")) == (1, 1)
    assert scaling.mask().tolist() == [False, False, True, True, True]
    assert scaling.effect(DOWN1) == 0, "the minimum"
    step(scaling, UP2)
    assert (seen(scaling, "desired"), seen(scaling, "serving"), seen(scaling, "pending")) == (3, 1, 2)
    assert seen(scaling, "next_ready_s") == pytest.approx(10.0)
    assert seen(scaling, "since_change_s") == 10.0
    assert seen(scaling, "cooldown_s") == 5.0
    assert seen(scaling, "last_change") == 2
    assert seen(scaling, "usd_per_hour") == pytest.approx(3 * HOUR_USD)
    assert scaling.effect(UP1) == 0, "the cooldown"
    assert scaling.mask().tolist() == [False, False, True, False, False]
    step(scaling, UP1)
    assert seen(scaling, "cooldown_s") == 0.0
    assert (seen(scaling, "desired"), seen(scaling, "serving")) == (3, 3)
    assert scaling.effect(UP2) == 1, "the maximum"
    assert scaling.mask().tolist() == [True, True, True, True, False]


def test_what_is_pending_goes_before_what_serves_and_the_least_busy_first() -> None:
    scaling = Scaling(world(serving=2), replace(RULES, cooldown_s=0.0))
    step(scaling, UP1, lambda _: np.array([1]))
    assert scaling.cluster.phases[2] == Phase.PENDING
    step(scaling, DOWN1, lambda _: np.array([1]))
    assert scaling.cluster.phases == (Phase.SERVING, Phase.SERVING, Phase.GONE, Phase.GONE)
    step(scaling, DOWN1)
    assert [int(phase) for phase in scaling.cluster.phases[:2]] == [Phase.GONE, Phase.SERVING]


def test_what_drains_serves_on_before_anything_is_started() -> None:
    long = trace_of(*(request(i, 0.1 * i, 100, 4000) for i in range(4)), request(9, 60.0, 10, 10))
    replicas = tuple(replace(s, standby=i > 1) for i, s in enumerate(specs(*[PROFILE] * 3)))
    scaling = Scaling(Cluster(replicas, long), replace(RULES, cooldown_s=0.0))
    step(scaling, HOLD)
    step(scaling, DOWN1)
    assert sorted(scaling.cluster.phases) == [Phase.SERVING, Phase.DRAINING, Phase.GONE]
    assert seen(scaling, "draining") == 1
    step(scaling, UP1)
    assert sorted(scaling.cluster.phases) == [Phase.SERVING, Phase.SERVING, Phase.GONE]


def test_the_budget_limits_growth() -> None:
    rules = replace(RULES, budget_usd_per_hour=2.5 * HOUR_USD)
    scaling = Scaling(world(), rules)
    assert seen(scaling, "budget_left") == pytest.approx(0.6)
    assert scaling.effect(UP2) == 1
    step(scaling, UP2)
    assert seen(scaling, "desired") == 2
    assert seen(Scaling(world(), RULES), "budget_left") == 1.0


def test_rewards_are_cost_and_price() -> None:
    rules = replace(RULES, price_per_usd=3600.0)
    scaling = Scaling(world(), rules)
    total = 0.0
    while not scaling.ended:
        total += step(scaling, HOLD if scaling.cluster.now_s != 30.0 else UP1)
    cluster = scaling.cluster
    assert cluster.outcomes().ok.all()
    assert cluster.cost_usd > 0
    assert total == pytest.approx(-cluster.cost_accrued - 3600.0 * cluster.cost_usd)


def test_the_load_is_seen() -> None:
    scaling = Scaling(world(gap_s=0.01, count=3000), RULES)
    assert np.isfinite(scaling.observe()).all()
    step(scaling, HOLD)
    first = dict(zip(SCALING_FEATURES, scaling.observe(), strict=True))
    assert first["arrivals_per_s"] == pytest.approx(100.0, rel=0.01)
    assert first["arrivals_per_s_60s"] == pytest.approx(100.0, rel=0.01)
    assert first["prompt_tokens_per_s"] == pytest.approx(10_000.0, rel=0.01)
    assert first["arrival_trend"] == pytest.approx(0.0, abs=0.01)
    assert first["batch_use"] == 1.0
    assert first["waiting"] > 100
    assert first["ttft_over_slo_p99"] > first["ttft_over_slo"] > 1.0
    assert 0.0 < first["slo_missed"] <= 1.0
    assert first["tpot_over_slo"] > 0.0
    assert first["hour_cos"] == pytest.approx(1.0, abs=1e-4)
    assert np.array_equal(scaling.observe(), scaling.observe()), "looking changes nothing"


def test_the_trend_of_arrivals() -> None:
    times = [*np.arange(0.0, 240.0, 2.0), *np.arange(240.0, 300.0, 0.2)]
    trace = trace_of(*(request(i, float(at), 10, 2) for i, at in enumerate(times)))
    scaling = Scaling(Cluster(specs(PROFILE), trace), RULES)
    for _ in range(29):
        step(scaling, HOLD)
    assert seen(scaling, "arrivals_per_s") == pytest.approx(5.0, rel=0.05)
    assert seen(scaling, "arrival_trend") > 1.0


def test_a_broken_replica_is_counted_and_goes_first() -> None:
    cluster = world(serving=2, fails_s=5.0)
    scaling = Scaling(cluster, RULES)
    step(scaling, HOLD)
    assert (seen(scaling, "serving"), seen(scaling, "broken"), seen(scaling, "desired")) == (1, 1, 2)
    step(scaling, DOWN1)
    assert cluster.phases[:2] == (Phase.SERVING, Phase.GONE)


def test_nobody_to_route_to_refuses() -> None:
    nothing = np.zeros((2, 1), np.float32)
    mask = np.array([[False, False], [False, True]])
    observation = Observation(np.zeros((2, 2, 99), np.float32), nothing, nothing, mask)
    assert least_marginal_cost(observation).tolist() == [-1, 1]
    cluster = world(serving=1, count=20, fails_s=0.5)
    scaling = Scaling(cluster, RULES)
    while not scaling.ended:
        assert np.isfinite(scaling.observe()).all()
        step(scaling, UP1)
    assert not cluster.outcomes().ok.all()


def test_a_trace_without_requests_ends_at_once() -> None:
    scaling = Scaling(world(count=1), RULES)
    scaling.cluster.next_request()
    scaling.cluster.dispatch(0)
    assert not scaling.ended
    step(scaling, HOLD)
    assert scaling.ended


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interval_s": 0.0}, "interval_s = 0.0 must be positive"),
        ({"interval_s": float("nan")}, "interval_s = nan"),
        ({"changes": (1, 2)}, "must contain 0"),
        ({"cooldown_s": -1.0}, "cooldown_s = -1.0"),
        ({"minimum": 0}, "minimum = 0"),
        ({"minimum": 3, "maximum": 2}, "maximum = 2 is less than minimum = 3"),
        ({"budget_usd_per_hour": 0.0}, "budget_usd_per_hour = 0.0"),
        ({"price_per_usd": -1.0}, "price_per_usd = -1.0"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScalingRules(**changes)


def test_a_cluster_outside_the_rules_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 of 4 replicas serve at first"):
        Scaling(world(serving=3), replace(RULES, maximum=2))


def test_swing_bends_arrivals_to_the_rates() -> None:
    even = np.linspace(0.0, 100.0, 100_001)
    bent = swing(even, np.array([0.0, 2.0, 0.0]), 100.0)
    assert np.all(np.diff(bent) >= 0)
    assert (bent[0], bent[-1]) == (0.0, 100.0)
    counts, _ = np.histogram(bent, bins=[0, 25, 50, 75, 100])
    assert counts / counts.sum() == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.01)


def test_the_sampler_varies_the_rate_and_repeats_with_its_seed() -> None:
    sampler = SwingSampler(
        load_scenario("mixed"), replicas=5, serving=2, duration_s=60.0, load=(0.1, 0.3), cold_start_s=9.0
    )
    assert sampler.most_replicas == 5
    first, second = (sampler.draw(np.random.default_rng(3)) for _ in range(2))
    assert first.trace.fingerprint() == second.trace.fingerprint()
    assert [spec.standby for spec in first.replicas] == [False, False, True, True, True]
    assert {spec.cold_start_s for spec in first.replicas} == {9.0}
    assert len({spec.replica_id for spec in first.replicas}) == 5
    other = sampler.draw(np.random.default_rng(4))
    assert len(other.trace) != len(first.trace)
    with pytest.raises(ConfigError, match="serving = 9 must be between 1 and replicas = 8"):
        SwingSampler(load_scenario("mixed"), serving=9)
    with pytest.raises(ConfigError, match="knots = 1"):
        SwingSampler(load_scenario("mixed"), knots=1)
