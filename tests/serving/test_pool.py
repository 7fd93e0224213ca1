"""Pools over one matrix of knowledge."""

from __future__ import annotations

import numpy as np
import pytest

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings
from steersman.serving.pool import Fleet
from steersman.traces.errors import ConfigError

PROFILE = load_profile("a100-llama-3.1-8b")


def fleet(*backends: BackendSettings, environment: dict[str, str] | None = None) -> Fleet:
    profiles = [PROFILE] * len(backends)
    return Fleet(backends, profiles, HealthSettings(), block_tokens=16, environment=environment or {})


def backend(name: str, *models: str, weight: float = 1.0, key: str = "") -> BackendSettings:
    return BackendSettings(url=f"http://{name}", models=models, weight=weight, api_key_env=key)


def test_a_replica_of_two_models_has_one_row() -> None:
    made = fleet(backend("a", "x", "y"), backend("b", "y"), backend("c", "x"))
    assert {model: pool.ids for model, pool in made.pools.items()} == {
        "x": ("a", "c"),
        "y": ("a", "b"),
    }
    L.on_dispatch(made.state[0], 10, 10, 5)
    for model in "xy":
        assert made.snapshot(made.pools[model], 1.0).state[0, L.INFLIGHT] == 1.0


def test_a_snapshot_does_not_change() -> None:
    made = fleet(backend("a", "m"), backend("b", "m"))
    snapshot = made.snapshot(made.pools["m"], 7.0)
    before = snapshot.state.copy()
    L.on_dispatch(made.state[1], 10, 10, 5)
    np.testing.assert_array_equal(snapshot.state, before)
    assert (snapshot.at_s, snapshot.model, snapshot.replica_ids) == (7.0, "m", ("a", "b"))


def test_models_that_are_told_later_form_pools() -> None:
    made = fleet(backend("a"), backend("b", "x"))
    assert list(made.pools) == ["x"]
    known = [made.all_known]
    made.set_models(made.replicas[0], [{"id": "x"}, {"id": "adapter", "parent": "x"}])
    assert {model: pool.ids for model, pool in made.pools.items()} == {
        "x": ("a", "b"),
        "adapter": ("a",),
    }
    known.append(made.all_known)
    assert known == [False, True]
    made.set_models(made.replicas[1], [{"id": "other"}])
    assert made.replicas[1].models == ("x",), "configured models stay"


def test_weights_scale_the_base_weight() -> None:
    made = fleet(backend("a", "m"), backend("b", "m", weight=3.0))
    assert made.state[1, L.BASE_WEIGHT] == pytest.approx(3.0 * made.state[0, L.BASE_WEIGHT])


def test_who_is_avoided() -> None:
    made = fleet(backend("a", "m"), backend("b", "m"), backend("c", "m"))
    pool = made.pools["m"]
    tried = np.array([False, True, False])
    made.replicas[0].resting_until_s = 10.0
    assert made.avoided(pool, tried, 9.0).tolist() == [True, True, False]
    assert made.avoided(pool, tried, 10.0).tolist() == [False, True, False]
    made.trust.suspects.add(made.replicas[2])
    assert made.avoided(pool, tried, 10.0).tolist() == [False, True, True]
    assert made.avoided(pool, tried, 9.0).tolist() == [True, True, False], "nobody else can"
    made.drain(made.replicas[0])
    assert made.avoided(pool, tried, 10.0).tolist() == [False, True, False], "nobody else takes any"


def test_matches_are_in_tokens_and_in_the_order_of_the_pool() -> None:
    made = fleet(backend("a", "x"), backend("b", "y"), backend("c", "y"))
    made.believe(made.replicas[2], (1, 2, 3), 0.0)
    assert made.match_tokens(made.pools["y"], (1, 2, 9)).tolist() == [0.0, 32.0]
    assert made.match_tokens(made.pools["y"], ()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "message"), [(None, "is not set"), (" ", "is not set"), ("a\nb", "header")]
)
def test_a_key_that_cannot_be_used_is_told_without_the_key(value: str | None, message: str) -> None:
    environment = {} if value is None else {"KEY": value}
    with pytest.raises(ConfigError, match=message) as raised:
        fleet(backend("a", "m", key="KEY"), environment=environment)
    assert "'KEY'" in str(raised.value)
    assert value is None or value.strip() == "" or value not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_replica_shows_itself_without_its_key() -> None:
    made = fleet(backend("a", "m", key="KEY"), environment={"KEY": "sk-secret"})
    assert made.replicas[0].authorization == "Bearer sk-secret"
    assert "sk-secret" not in repr(made.replicas[0])


def test_a_replica_for_people() -> None:
    made = fleet(backend("a", "m"))
    state = made.describe(made.replicas[0], 3.0)
    assert (state.replica_id, state.healthy, state.inflight) == ("a", True, 0)
    assert state.age_s == float("inf")
