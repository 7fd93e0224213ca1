from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.evaluate.pools import resized
from steersman.env.profiles import load_profile
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Scenario

PROFILES = [load_profile(f"{gpu}-llama-3.1-8b") for gpu in ("h100", "a100", "l40s")]


def pool_of(counts: list[int]) -> Scenario:
    kinds = [p for p, count in zip(PROFILES, counts, strict=False) for _ in range(count)]
    specs = tuple(ReplicaSpec(f"{p.gpu}-{i}", p) for i, p in enumerate(kinds))
    return replace(load_scenario("mixed"), replicas=specs)


def kinds(scenario: Scenario) -> Counter[str]:
    return Counter(spec.profile.gpu for spec in scenario.replicas)


def test_its_own_size_is_its_own_pool() -> None:
    for name in ("mixed", "homogeneous"):
        scenario = load_scenario(name)
        assert resized(scenario, len(scenario.replicas)) == scenario


def test_the_mixed_pool_from_four_to_thirty_two() -> None:
    mixed = load_scenario("mixed")
    sizes = {n: tuple(kinds(resized(mixed, n)).values()) for n in (4, 5, 6, 7, 12, 16, 20, 32)}
    assert sizes == {
        4: (2, 1, 1), 5: (2, 2, 1), 6: (2, 2, 2), 7: (3, 2, 2),
        12: (5, 4, 3), 16: (6, 6, 4), 20: (8, 7, 5), 32: (12, 12, 8),
    }  # fmt: skip


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 40))
def test_a_larger_pool_holds_the_smaller_and_keeps_the_proportions(counts: list[int], n: int) -> None:
    scenario = pool_of(counts)
    smaller, larger = kinds(resized(scenario, n)), kinds(resized(scenario, n + 1))
    assert sum(smaller.values()) == n
    assert smaller <= larger
    for profile, count in zip(PROFILES, counts, strict=False):
        share = n * count / sum(counts)
        assert abs(smaller[profile.gpu] - share) < 1.0
    multiple = resized(scenario, n * sum(counts))
    assert list(kinds(multiple).values()) == [n * count for count in counts]
    assert len({spec.replica_id for spec in multiple.replicas}) == len(multiple.replicas)


def test_a_pool_to_which_things_happen_has_one_size() -> None:
    with pytest.raises(ConfigError, match="incidents"):
        resized(load_scenario("incidents"), 4)
    with pytest.raises(ConfigError, match="at least 1"):
        resized(load_scenario("mixed"), 0)
