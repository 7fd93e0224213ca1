from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.policies import POLICY_NAMES, is_equivariant, make_policy, policy_options
from steersman.agents.policies.completion import completion_s
from steersman.agents.policies.connections import effective_weight
from steersman.agents.policies.llmd import llm_d_score
from steersman.agents.policies.p2c import p2c_context_cost, p2c_cost
from steersman.agents.policies.vllm import vllm_dp_cost
from steersman.agents.policy import NO_CANDIDATE, Policy, argmax_decision
from steersman.agents.policy_checker import check_policy
from steersman.agents.samples import sample_observation
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Observation
from tests.agents.observations import observation


def choices(policy: Policy, seen: Observation, times: int) -> list[int]:
    return [policy.decide(seen).choice for _ in range(times)]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_keeps_the_contract(name: str) -> None:
    report = check_policy(lambda seed: make_policy(name, seed=seed), equivariant=is_equivariant(name))
    assert report.latency_p50_us > 0


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_names_itself_and_documents_its_options(name: str) -> None:
    seen = sample_observation(np.random.default_rng(0), 4)
    policy = make_policy(name, seed=0)
    assert policy.name == name
    assert policy.decide(seen).policy == name
    assert all(field.description for field in policy_options(name).model_fields.values())


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'p2d'; did you mean 'p2c'\?"):
        make_policy("p2d", seed=0)
    with pytest.raises(ConfigError, match="known policies: random, round-robin"):
        make_policy("zzz", seed=0)


def test_an_unknown_option_suggests_the_closest() -> None:
    with pytest.raises(
        ConfigError, match=r"policy 'p2c'.*unknown key 'utilization_weight'.*utilisation_weight"
    ):
        make_policy("p2c", seed=0, options={"utilization_weight": 1.0})


def test_an_option_out_of_range_names_key_and_value() -> None:
    with pytest.raises(ConfigError, match="'utilisation_weight' = -1"):
        make_policy("p2c", seed=0, options={"utilisation_weight": -1})


def test_instances_do_not_share_their_turn() -> None:
    seen = observation(3)
    first, second = make_policy("round-robin", seed=0), make_policy("round-robin", seed=0)
    assert choices(first, seen, 2) == [0, 1]
    assert choices(second, seen, 1) == [0]


def test_round_robin_skips_the_masked_and_starts_anew_when_the_pool_shrinks() -> None:
    policy = make_policy("round-robin", seed=0)
    assert choices(policy, observation(4, [True, False, True, True]), 4) == [0, 2, 3, 0]
    assert choices(policy, observation(4), 3) == [1, 2, 3]
    assert choices(policy, observation(2), 1) == [0]


def test_weighted_round_robin_spreads_by_weight_and_smoothly() -> None:
    policy = make_policy("weighted-round-robin", seed=0)
    # Nginx's published example: weights 5, 1, 1 give a a b a c a a.
    assert choices(policy, observation(3, base_weight=[5.0, 1.0, 1.0]), 7) == [0, 0, 1, 0, 2, 0, 0]


def test_weighted_round_robin_with_exponent_zero_takes_plain_turns() -> None:
    policy = make_policy("weighted-round-robin", seed=0, options={"exponent": 0.0})
    assert choices(policy, observation(3, base_weight=[5.0, 1.0, 1.0]), 6) == [0, 1, 2, 0, 1, 2]


def test_random_is_even_over_the_allowed() -> None:
    policy = make_policy("random", seed=0)
    counts = Counter(choices(policy, observation(4, [True, True, False, True]), 3000))
    assert set(counts) == {0, 1, 3}
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_least_connections_takes_the_fewest_in_flight() -> None:
    seen = observation(4, [True, True, True, False], inflight=[3.0, 1.0, 2.0, 0.0])
    assert make_policy("least-connections", seed=0).decide(seen).choice == 1


def test_effective_weight_is_the_formula_of_the_specification() -> None:
    seen = observation(
        3,
        base_weight=[1.0, 0.7, 0.07],
        gpu_memory_gib=[80.0, 40.0, 160.0],
        weights_gib=[16.0, 16.0, 140.0],
        max_num_seqs=[256.0, 128.0, 256.0],
        queue=[0.0, 4.0, 32.0],
    )
    expected = [1.0 * 5.0 * 256.0, 0.7 * 2.5 * 32.0, 0.07 * (160 / 140) * 8.0]
    np.testing.assert_allclose(effective_weight(seen.replicas), expected, rtol=1e-5)
    assert make_policy("weighted-least-connections", seed=0).decide(seen).choice == 0


def test_p2c_score_is_the_formula_of_the_specification() -> None:
    seen = observation(
        2, queue=[4.0, 2.0], mean_e2e_s=[3.0, 0.0], e2e_s=[9.0, 5.0], batch_use=[0.5, 0.1]
    )
    np.testing.assert_allclose(p2c_cost(seen.replicas, 0.3), [12.15, 10.03], rtol=1e-6)
    np.testing.assert_allclose(p2c_context_cost(seen.replicas, 0.3, 1.0), [21.15, 15.03], rtol=1e-6)


def test_p2c_propensities_count_the_pairs_won() -> None:
    # Of the 6 pairs of 4, the idle one wins 3; the two equal ones share theirs; the busiest wins none.
    seen = observation(4, queue=[0.0, 2.0, 2.0, 9.0], mean_e2e_s=[1.0] * 4)
    policy = make_policy("p2c", seed=1)
    stated = {d.choice: d.propensity for d in (policy.decide(seen) for _ in range(200))}
    assert stated == {0: pytest.approx(3 / 6), 1: pytest.approx(1.5 / 6), 2: pytest.approx(1.5 / 6)}


@given(
    queue=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_p2c_propensities_of_all_winners_sum_to_one(queue: list[int], seed: int) -> None:
    seen = observation(len(queue), queue=[float(q) for q in queue], mean_e2e_s=[1.0] * len(queue))
    policy = make_policy("p2c", seed=seed)
    per_level: dict[int, float] = {}
    for _ in range(400):
        decision = policy.decide(seen)
        per_level[queue[decision.choice]] = decision.propensity
    # Replicas of one queue length have one propensity, whether all of them were drawn or not.
    total = sum(p * queue.count(level) for level, p in per_level.items())
    assert total == pytest.approx(1.0, abs=0.06)


def test_earliest_completion_is_remaining_work_over_capability() -> None:
    seen = observation(
        1,
        request={"input_tokens": 100.0, "output_p50": 50.0},
        queue=[3.0],
        max_num_seqs=[256.0],
        prefill_tokens=[900.0],
        uncached_tokens=[100.0],
        prefill_token_s=[1e-4],
        decode_base_s=[0.01],
        decode_seq_s=[0.001],
        decode_context_s=[1e-6],
        context_tokens=[900.0],
        output_tokens=[300.0],
    )
    # 1000 prompt tokens at 0.1 ms, then (150 + 50) tokens four at a time, each 10 + 4 + 1 ms.
    np.testing.assert_allclose(completion_s(seen.replicas, seen.request), [0.1 + 50 * 0.015], rtol=1e-5)


def test_marginal_cost_takes_the_least() -> None:
    seen = observation(3, [True, True, False], marginal_cost=[0.5, 0.4, 0.1])
    decision = make_policy("marginal-cost", seed=0).decide(seen)
    assert (decision.choice, decision.propensity) == (1, 1.0)


def test_peers_follow_their_published_formulas() -> None:
    seen = observation(
        3,
        [True, True, False],
        waiting=[2.0, 0.0, 9.0],
        running=[1.0, 8.0, 0.0],
        kv_usage=[0.5, 0.25, 0.0],
        match_fraction=[1.0, 0.0, 0.0],
    )
    np.testing.assert_allclose(vllm_dp_cost(seen.replicas), [9.0, 8.0, 36.0])
    np.testing.assert_allclose(llm_d_score(seen.replicas, seen.mask)[:2], [0 + 1 + 3, 2 + 1.5 + 0])
    assert make_policy("llm-d-default", seed=0).decide(seen).choice == 0
    assert make_policy("vllm-dp", seed=0).decide(seen).choice == 1


def test_scores_hold_for_a_batch_of_clusters() -> None:
    rng = np.random.default_rng(3)
    seen = [sample_observation(rng, 5) for _ in range(4)]
    replicas = np.stack([o.replicas for o in seen])
    requests = np.stack([o.request for o in seen])
    mask = np.stack([o.mask for o in seen])
    for batch, single in (
        (p2c_cost(replicas, 0.3), [p2c_cost(o.replicas, 0.3) for o in seen]),
        (effective_weight(replicas), [effective_weight(o.replicas) for o in seen]),
        (completion_s(replicas, requests), [completion_s(o.replicas, o.request) for o in seen]),
        (llm_d_score(replicas, mask), [llm_d_score(o.replicas, o.mask) for o in seen]),
    ):
        np.testing.assert_allclose(batch, np.stack(single), rtol=1e-6)


def test_argmax_never_lets_a_nan_win() -> None:
    rng = np.random.default_rng(0)
    scores = np.array([np.nan, -5.0, np.nan], dtype=np.float32)
    assert argmax_decision(scores, np.array([True, True, True]), rng, policy="t").choice == 1
    all_nan = argmax_decision(scores, np.array([True, False, True]), rng, policy="t")
    assert (all_nan.choice in {0, 2}, all_nan.propensity) == (True, 0.5)
    assert argmax_decision(scores, np.array([False] * 3), rng, policy="t").choice == NO_CANDIDATE


SCORES = st.sampled_from([0.0, 1.0, -1.0, 2.0, float("nan"), float("inf"), -float("inf")])


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=6), st.integers(0, 99))
def test_argmax_takes_one_of_the_best_that_are_allowed(
    candidates: list[tuple[float, bool]], seed: int
) -> None:
    scores = np.array([score for score, _ in candidates], dtype=np.float32)
    mask = np.array([allowed for _, allowed in candidates])
    decision = argmax_decision(scores, mask, np.random.default_rng(seed), policy="t")
    rank = [-4e38 if np.isnan(score) or score == -np.inf else score for score in scores.tolist()]
    best = max((rank[i] for i in np.flatnonzero(mask)), default=None)
    tied = [i for i in np.flatnonzero(mask).tolist() if rank[i] == best]
    assert decision.choice in (tied or [NO_CANDIDATE])
    assert decision.propensity == pytest.approx(1.0 / max(len(tied), 1))
