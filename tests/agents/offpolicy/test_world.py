"""The cluster that a log tells of does what the log says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.offpolicy.contestants import contestant
from steersman.agents.offpolicy.hardware import profile_of_row
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION, replay
from steersman.agents.offpolicy.world import World, build_world
from steersman.env.profiles import load_profile
from steersman.env.scenario import load_scenario
from steersman.predictors import ledger as L
from steersman.traces.errors import ArtifactError, ConfigError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status
from tests.support.simulated_log import demo_trace, simulated_log


@pytest.fixture(scope="module")
def world(records: list[OutcomeRecord]) -> World:
    return build_world(records)


def test_what_was_simulated_is_found_again(records: list[OutcomeRecord], world: World) -> None:
    demo = load_scenario("demo").replicas
    assert [spec.replica_id for spec in world.specs] == [spec.replica_id for spec in demo]
    for spec, truth in zip(world.specs, demo, strict=True):
        assert spec.profile.decode_base_s == pytest.approx(truth.profile.decode_base_s, rel=0.05)
    assert len(world.trace) == len(records)
    assert world.staleness.scrape_interval_s == pytest.approx(0.2, rel=0.2)
    for line in world.fidelity():
        assert abs(line.after) < 0.05, line
    cluster = world.cluster(world.trace)
    assert np.array_equal(cluster.state[:, L.LOG_BIAS_TPOT], world.believed[:, L.LOG_BIAS_TPOT])


def test_hardware_that_slowed_is_calibrated(records: list[OutcomeRecord]) -> None:
    """Twice as slow as configured: the world is, while its router still believes the old profile."""
    demo = load_scenario("demo").replicas
    slow = [replace(spec, slowdown=2.0) for spec in demo]
    world = build_world(simulated_log(demo_trace(400, load=0.3), slow))
    fitted = [kind for kind in world.kinds if kind.fit is not None]
    assert fitted
    for kind in fitted:
        (truth,) = [s.profile for s in demo if s.replica_id == kind.replicas[0]]
        assert kind.profile.decode_base_s == pytest.approx(2.0 * truth.decode_base_s, rel=0.15)
    assert np.array_equal(
        world.believed[:, L.DECODE_BASE_S], [spec.profile.decode_base_s for spec in demo]
    )


def test_replicas_of_one_profile_and_two_speeds_are_two_kinds() -> None:
    demo = load_scenario("demo").replicas
    pool = [replace(demo[0], replica_id=f"r{i}", slowdown=1.8 if i == 3 else 1.0) for i in range(4)]
    world = build_world(simulated_log(demo_trace(400, load=0.4), pool))
    found = sorted(tuple(sorted(kind.replicas)) for kind in world.kinds)
    assert found == [("r0", "r1", "r2"), ("r3",)]


def test_only_what_came_since_the_pool_changed(records: list[OutcomeRecord]) -> None:
    before = [replace(record, replica_ids=("x", *record.replica_ids[1:])) for record in records[:200]]
    world = build_world([*before, *records[200:]])
    assert len(world.trace) == len(records) - 200
    assert world.left_out == 200


def test_what_did_not_end_well_is_left_out(records: list[OutcomeRecord]) -> None:
    spoiled = [
        replace(record, status=Status.FAILED) if i % 10 == 0 else record
        for i, record in enumerate(records)
    ]
    assert build_world(spoiled).left_out == 70


def test_too_few_make_no_world(records: list[OutcomeRecord]) -> None:
    with pytest.raises(ConfigError, match="99 requests"):
        build_world(records[:99])
    with pytest.raises(ConfigError, match="0 requests"):
        build_world([])


def test_a_worse_policy_is_worse_in_the_replay(world: World) -> None:
    told: list[float] = []
    table = replay(
        world,
        contestant("marginal-cost"),
        contestant("random"),
        seeds=range(3),
        requests=300,
        on_progress=told.append,
    )
    assert table.ratio(CHALLENGER, CHAMPION).lo > 1.1
    assert sum(told) == pytest.approx(3.0)
    same = replay(
        world, contestant("marginal-cost"), contestant("marginal-cost"), seeds=range(2), requests=150
    )
    assert same.ratio(CHALLENGER, CHAMPION).value == 1.0
    with pytest.raises(ConfigError, match="seeds"):
        replay(world, contestant("random"), contestant("random"), seeds=())


def test_contestants() -> None:
    assert contestant("p2c").version == "p2c"
    assert contestant("shipped").bundle is not None
    with pytest.raises(ArtifactError, match="no bundle here"):
        contestant("/nowhere/at/all")


def test_profiles_are_known_by_their_rows() -> None:
    profile = load_profile("a100-llama-3.1-8b")
    started = replace(profile, max_num_seqs=17, kv_capacity_tokens=profile.kv_capacity_tokens - 7)
    row = L.new_row(started)
    assert profile_of_row(row, "m") == started
    row[L.DECODE_BASE_S] *= 1.01
    other = profile_of_row(row, "m")
    assert other.model.name == "m"
    assert np.allclose(L.new_row(other)[: L.BASE_WEIGHT + 1], row[: L.BASE_WEIGHT + 1])
