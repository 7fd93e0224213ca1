"""The peers' policies against scores computed by hand from their published rules."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.policies import make_policy
from steersman.agents.policies.dynamo import dynamo_cost
from steersman.agents.policies.spread import min_max
from steersman.agents.policy import NO_CANDIDATE
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from tests.agents.observations import observation, reordered

PEERS = (
    "llm-d-default",
    "llm-d-sticky",
    "predicted-latency",
    "dynamo-kv",
    "sglang-cache-aware",
    "ray-prefix",
    "aibrix-prefix",
    "prequal",
    "production-stack-prefix",
    "vllm-dp",
)
"""By rule, not by position: reordering the candidates reorders the first answer of a fresh policy."""


def decide(name: str, seen: Observation, **options: object) -> Decision:
    return make_policy(name, seed=0, options=options).decide(seen)


def drawn(name: str, seen: Observation, times: int = 300, **options: object) -> set[int]:
    """Everything a policy might do first."""
    return {make_policy(name, seed=seed, options=options).decide(seen).choice for seed in range(times)}


@pytest.mark.parametrize("name", PEERS)
@given(seed=st.integers(0, 2**16))
def test_a_fresh_policy_goes_by_what_it_sees_not_by_position(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = sample_observation(rng, int(rng.integers(2, 9)))
    order = rng.permutation(len(seen.mask))
    here = {d.choice: d.propensity for d in (decide_with(name, seen, s) for s in range(4))}
    moved = reordered(seen, order)
    there = {int(order[d.choice]): d.propensity for d in (decide_with(name, moved, s) for s in range(4))}
    for choice in here.keys() & there.keys():
        assert here[choice] == pytest.approx(there[choice])
    # What is chosen for sure is chosen wherever it stands.
    for choice, propensity in here.items():
        if propensity > 0.99:
            assert choice in there


def decide_with(name: str, seen: Observation, seed: int) -> Decision:
    return make_policy(name, seed=seed).decide(seen)


def test_dynamo_adds_the_blocks_to_prefill_and_those_that_decode() -> None:
    seen = observation(
        3,
        prefill_tokens=[160.0, 0.0, 0.0],
        uncached_tokens=[16.0, 320.0, 320.0],
        context_tokens=[0.0, 0.0, 1600.0],
    )
    np.testing.assert_allclose(dynamo_cost(seen.replicas, 1.0, 16), [11.0, 20.0, 120.0])
    np.testing.assert_allclose(dynamo_cost(seen.replicas, 2.0, 32), [11.0, 20.0, 70.0])
    assert decide("dynamo-kv", seen).choice == 0
    assert decide("dynamo-kv", seen).propensity == 1.0


def test_dynamo_with_a_temperature_draws_from_the_softmax_of_normalised_costs() -> None:
    seen = observation(3, [True, True, False], context_tokens=[0.0, 160.0, 0.0])
    decisions = [decide_with_options(seen, s) for s in range(40)]
    chances = {d.choice: d.propensity for d in decisions}
    best = 1.0 / (1.0 + np.exp(-1.0 / 0.5))
    assert chances == {0: pytest.approx(best), 1: pytest.approx(1.0 - best)}


def decide_with_options(seen: Observation, seed: int) -> Decision:
    return make_policy("dynamo-kv", seed=seed, options={"temperature": 0.5}).decide(seen)


def test_sglang_balances_first_then_matches_then_spreads() -> None:
    # 70 - 0 > 64 and 70 > 1.5 * 0: the fewest in flight, whatever matches.
    crowded = observation(2, inflight=[70.0, 0.0], match_fraction=[1.0, 0.0])
    assert decide("sglang-cache-aware", crowded).choice == 1
    # 70 - 60 is no imbalance: the match.
    busy = observation(2, inflight=[70.0, 60.0], match_fraction=[0.9, 0.2])
    assert decide("sglang-cache-aware", busy).choice == 0
    # 200 - 136 is one by difference alone only: 200 is not more than 1.5 * 136.
    high = observation(2, inflight=[201.0, 136.0], match_fraction=[0.9, 0.2])
    assert decide("sglang-cache-aware", high).choice == 0
    assert decide("sglang-cache-aware", high, balance_abs=32, balance_rel=1.1).choice == 1


def test_sglang_spreads_unknown_prompts_over_the_smallest_trees() -> None:
    policy = make_policy("sglang-cache-aware", seed=3)
    long = observation(3, match_fraction=[0.3] * 3, uncached_tokens=[1000.0] * 3)
    short = observation(3, match_fraction=[0.3] * 3, uncached_tokens=[100.0] * 3)
    first = policy.decide(long).choice
    # The others are empty, then hold 100 each, and take turns until they hold as much as the first.
    later = [policy.decide(short).choice for _ in range(18)]
    assert Counter(later) == {i: 9 for i in range(3) if i != first}


def test_ray_follows_matches_while_balanced_and_draws_two_when_not() -> None:
    balanced = observation(3, queue=[10.0, 0.0, 0.0], match_fraction=[0.5, 0.1, 0.0])
    assert decide("ray-prefix", balanced).choice == 0
    imbalanced = observation(3, queue=[20.0, 0.0, 9.0], match_fraction=[0.5, 0.0, 0.0])
    decisions = [decide_with("ray-prefix", imbalanced, s) for s in range(60)]
    assert {d.choice: d.propensity for d in decisions} == {
        1: pytest.approx(2 / 3),
        2: pytest.approx(1 / 3),
    }
    unknown = observation(3, match_fraction=[0.05, 0.0, 0.0])
    assert drawn("ray-prefix", unknown, 60) == {0, 1, 2}


def test_aibrix_takes_the_best_match_that_is_not_overloaded() -> None:
    # Mean 4, deviation 3.27: the best match runs 8 > 7.27, so the second best serves.
    seen = observation(3, inflight=[8.0, 4.0, 0.0], match_fraction=[0.9, 0.5, 0.1])
    assert decide("aibrix-prefix", seen).choice == 1
    assert decide("aibrix-prefix", seen, sigmas=2.0).choice == 0
    # Imbalanced: only the least loaded may match.
    far = observation(3, inflight=[9.0, 0.0, 0.0], match_fraction=[0.9, 0.0, 0.4])
    assert decide("aibrix-prefix", far).choice == 2
    none = observation(3, inflight=[3.0, 1.0, 2.0])
    assert decide("aibrix-prefix", none).choice == 1


def test_production_stack_goes_for_the_deepest_match_whatever_the_load() -> None:
    seen = observation(3, inflight=[99.0, 0.0, 0.0], match_fraction=[0.5, 0.4, 0.0])
    assert decide("production-stack-prefix", seen).choice == 0
    assert drawn("production-stack-prefix", observation(3), 60) == {0, 1, 2}


def crowded(prefill: float, *, token_s: float = 1e-3, match: float = 0.8) -> Observation:
    """The first holds most of the prompt and has so many tokens to prefill; the second is idle."""
    return observation(
        2,
        match_fraction=[match, 0.0],
        uncached_tokens=[200.0, 1000.0],
        prefill_token_s=[token_s, token_s],
        prefill_tokens=[prefill, 0.0],
    )


def test_sticky_holds_until_it_is_saturated() -> None:
    # 900 tokens in flight take 0.9 s longer than none: within the limit of a second.
    assert decide("llm-d-sticky", crowded(900.0)).choice == 0
    assert decide("llm-d-sticky", crowded(1100.0)).choice == 1
    # Saturated, but still the least to do: 700 + 200 < 0 + 1000.
    assert decide("llm-d-sticky", crowded(700.0, token_s=2e-3)).choice == 0
    # Below the threshold nobody is sticky: the least uncached tokens.
    assert decide("llm-d-sticky", crowded(900.0, match=0.79)).choice == 1


def test_prequal_avoids_the_hot_and_takes_the_quickest_of_the_cold() -> None:
    seen = observation(
        4, queue=[9.0, 1.0, 2.0, 3.0], mean_e2e_s=[0.1, 5.0, 4.0, 6.0], e2e_s=[1.0, 8.0, 9.0, 7.0]
    )
    # The 0.84 quantile of four is the greatest: nobody is hotter than that.
    assert decide("prequal", seen).choice == 0
    # At 0.75, nine in flight are hot: of the others, the last is quickest by the estimate.
    assert decide("prequal", seen, hot_quantile=0.75).choice == 3
    assert decide("prequal", seen, hot_quantile=0.75, signal="recent").choice == 2
    # With a quantile of zero all are hot: the fewest in flight.
    assert decide("prequal", seen, hot_quantile=0.0).choice == 1
    # Before the first outcome the estimate stands in.
    fresh = observation(2, queue=[1.0, 1.0], mean_e2e_s=[0.0, 3.0], e2e_s=[2.0, 9.0])
    assert decide("prequal", fresh, signal="recent").choice == 0


class Fixed:
    """A latency predictor that says what it was told."""

    version = "fixed-1"

    def __init__(self, ttft_s: list[float], tpot_s: list[float]) -> None:
        columns = [np.array(ttft_s)] * 2 + [np.array(tpot_s)] * 2
        self._answer: NDArray[np.float64] = np.stack(columns, axis=1)

    def predict(
        self, replicas: NDArray[np.float32], request: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        return self._answer


def test_predicted_latency_weighs_what_the_model_says() -> None:
    seen = observation(3)
    # Normalised TTFT 0, 0.5, 1 and TPOT 1, 0.1, 0: 0.2, 0.42, 0.8; by TPOT alone the last.
    model = Fixed([1.0, 2.0, 3.0], [0.11, 0.02, 0.01])
    for options, best in (({}, 0), ({"ttft_weight": 0.0}, 2), ({"tpot_weight": 2.0}, 1)):
        policy = make_policy("predicted-latency", seed=0, options=options, latency=model)
        decision = policy.decide(seen)
        assert decision.choice == best
        assert decision.propensity == pytest.approx(0.99 + 0.01 / 3)
        assert (decision.version, policy.version) == ("fixed-1", "fixed-1")


def test_predicted_latency_keeps_to_the_cache_until_it_costs_too_much() -> None:
    seen = observation(2, match_fraction=[0.0, 0.9])
    near, far = Fixed([1.0, 5.0], [0.1, 0.1]), Fixed([1.0, 7.0], [0.1, 0.1])
    options = {"exploration": 0.0}
    for model, best in ((near, 1), (far, 0)):
        policy = make_policy("predicted-latency", seed=0, options=options, latency=model)
        decision = policy.decide(seen)
        assert (decision.choice, decision.propensity) == (best, 1.0)


def test_predicted_latency_explores_everybody_at_times() -> None:
    seen = observation(4, ttft_s=[1.0, 2.0, 3.0, 4.0], tpot_s=[0.1] * 4)
    policy = make_policy("predicted-latency", seed=0, options={"exploration": 0.2})
    decisions = [policy.decide(seen) for _ in range(2000)]
    counts = Counter(d.choice for d in decisions)
    assert {d.choice: d.propensity for d in decisions} == {
        0: pytest.approx(0.85), 1: pytest.approx(0.05), 2: pytest.approx(0.05), 3: pytest.approx(0.05)
    }  # fmt: skip
    assert counts[0] / 2000 == pytest.approx(0.85, abs=0.04)


def test_vtc_gives_each_user_the_replica_of_its_bucket() -> None:
    policy = make_policy("aibrix-vtc", seed=0)

    def ask(tenant: str, tokens: float, at_s: float) -> int:
        return policy.decide(
            observation(4, request={"input_tokens": tokens}, tenant=tenant, at_s=at_s)
        ).choice

    assert ask("heavy", 2900.0, 0.0) == 0
    # The bucket is (2900 + 2900) / 2, so its next request belongs at 2900 / 2900 = 1.
    assert ask("heavy", 2900.0, 1.0) == 1
    assert ask("light", 10.0, 2.0) == 0
    # Now buckets hold (10 + 5800) / 2 tokens: heavy has used two of them, light none.
    assert ask("heavy", 0.0, 3.0) == 2
    assert ask("light", 0.0, 4.0) == 0
    # Five minutes later all is forgotten.
    assert ask("heavy", 0.0, 400.0) == 0


def test_vtc_states_the_chance_of_its_noise() -> None:
    seen = observation(3, inflight=[0.0, 0.0, 0.0], tenant="a")
    counts: Counter[int] = Counter()
    stated: dict[int, float] = {}
    wide = {"noise": 4.0}
    for seed in range(2000):
        decision = make_policy("aibrix-vtc", seed=seed, options=wide).decide(seen)
        counts[decision.choice] += 1
        stated[decision.choice] = decision.propensity
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-3)
    for choice, propensity in stated.items():
        assert counts[choice] / 2000 == pytest.approx(propensity, abs=0.05)


def test_vtc_draws_evenly_for_nobody() -> None:
    decision = decide("aibrix-vtc", observation(3, [True, False, True]))
    assert decision.propensity == 0.5
    assert drawn("aibrix-vtc", observation(3, [True, False, True]), 40) == {0, 2}


@given(session=st.text(min_size=1, max_size=8), n=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_session_stays_where_it_hashes_to(session: str, n: int, seed: int) -> None:
    seen, options = observation(n, session=session), {"virtual_nodes": 10}
    here = make_policy("bounded-hash", seed=seed, options=options).decide(seen)
    again = make_policy("bounded-hash", seed=seed + 1, options=options).decide(seen)
    assert here.choice == again.choice
    assert here.propensity == 1.0


def test_a_full_replica_passes_its_sessions_on_and_no_load_exceeds_the_bound() -> None:
    policy = make_policy("bounded-hash", seed=0, options={"slack": 0.25})
    inflight = [0.0] * 5
    for i in range(200):
        seen = observation(5, inflight=inflight, session=f"s{i % 7}")
        inflight[policy.decide(seen).choice] += 1.0
        assert max(inflight) <= np.ceil(1.25 * sum(inflight) / 5)


def test_sessions_move_little_when_a_replica_may_not_be_used() -> None:
    policy = make_policy("bounded-hash", seed=0)
    sessions = [f"s{i}" for i in range(200)]
    before = [policy.decide(observation(6, session=s)).choice for s in sessions]
    mask = [True] * 6
    mask[2] = False
    after = [policy.decide(observation(6, mask, session=s)).choice for s in sessions]
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 2)
    assert len({a for a, b in zip(after, before, strict=True) if b == 2}) > 1


def test_without_a_session_the_tenant_counts_and_without_either_the_load() -> None:
    policy = make_policy("bounded-hash", seed=0)
    by_tenant = {policy.decide(observation(8, tenant=f"t{i}")).choice for i in range(40)}
    assert len(by_tenant) > 3
    assert policy.decide(observation(3, inflight=[2.0, 0.0, 1.0])).choice == 1
    assert policy.decide(observation(2, [False, False], session="s")).choice == NO_CANDIDATE


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9),
    broken=st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_scaling_keeps_the_order_and_puts_what_is_broken_last(
    values: list[float], broken: list[bool]
) -> None:
    array = np.where(broken[: len(values)], np.nan, values)
    scaled = min_max(array, np.ones(len(values), dtype=np.bool_))
    assert ((scaled >= 0.0) & (scaled <= 1.0)).all()
    sound = np.isfinite(array)
    if sound.any():
        assert (scaled[~sound] == 1.0).all()
        order = np.argsort(array[sound], kind="stable")
        assert (np.diff(scaled[sound][order]) >= 0.0).all()


def test_load_is_read_where_each_peer_counts_it() -> None:
    # Requests that others sent are in the queue but not among the router's own in flight.
    seen = observation(2, inflight=[0.0, 1.0], queue=[50.0, 1.0], match_fraction=[0.0, 0.0])
    assert decide("aibrix-prefix", seen).choice == 0
    assert decide("prequal", seen, hot_quantile=0.5).choice == 1
    assert REPLICA_INDEX["inflight"] != REPLICA_INDEX["queue"]
