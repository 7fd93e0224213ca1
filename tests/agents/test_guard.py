from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.guard import FallbackReason, Guard, GuardSettings
from steersman.agents.guard.guard import disagreement, disagrees
from steersman.agents.guard.regret import better_of_two_weights
from steersman.agents.guard.share import ShareWindow, fair_share
from steersman.agents.policies import make_policy
from steersman.agents.policy import NO_CANDIDATE
from steersman.agents.policy_checker import check_policy
from steersman.agents.ranges import Ranges
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Decision, Observation, Priority
from steersman.traces.settings import CONFIG_ROOT, load_settings, read_yaml

R = REPLICA_INDEX


class Time:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Learned:
    """A stand-in with everything a learned policy may show: it answers what a test wants."""

    name = "learned"
    version = "7"

    def __init__(self, answer: Callable[[Observation], Decision] | None = None) -> None:
        self.answer = answer or best
        self.ranges: Ranges | None = None
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        return self.answer(observation)


class Ensemble(Learned):
    """A stand-in with heads."""

    def __init__(self, heads: list[list[float]]) -> None:
        super().__init__()
        self.heads: NDArray[np.float32] = np.array(heads, dtype=np.float32)

    def head_scores(self, observation: Observation) -> NDArray[np.float32]:
        return self.heads

    def choose(self, heads: NDArray[np.float32], mask: NDArray[np.bool_]) -> Decision:
        return Decision(int(np.argmax(heads.mean(axis=0))), "learned", "7", scores=heads.mean(axis=0))


def best(observation: Observation) -> Decision:
    """The candidate with the least predicted TTFT: nothing to object to."""
    ttft_s = np.where(observation.mask, observation.replicas[:, R["ttft_s"]], np.inf)
    return Decision(int(np.argmin(ttft_s)), "learned", "7", scores=-observation.replicas[:, R["ttft_s"]])


def choose(replica: int, scores: NDArray[np.float32] | None = None) -> Callable[[Observation], Decision]:
    return lambda _: Decision(replica, "learned", "7", scores=scores)


def calm(n: int = 4) -> Observation:
    """Equal, lightly loaded replicas with fresh metrics."""
    observation = sample_observation(np.random.default_rng(1), n, allowed=n)
    observation.replicas[:] = observation.replicas[0]
    observation.replicas[:, R["age_s"]] = 0.1
    observation.replicas[:, R["ttft_s"]] = 0.2
    observation.replicas[:, R["queue"]] = 1.0
    return observation


def guarded(learned: Learned | None, clock: Time | None = None, **keys: object) -> Guard:
    return Guard.make(learned, GuardSettings.model_validate(keys), seed=0, clock=clock or Time())


def trips_with(guard: Guard, observation: Observation, reason: FallbackReason) -> Decision:
    decision = guard.decide(observation)
    assert decision.fallback_reason == reason
    assert decision.policy in guard.settings.fallbacks
    assert observation.mask[decision.choice]
    assert guard.fallbacks[reason] >= 1
    return decision


def test_a_sound_decision_passes_untouched() -> None:
    guard = guarded(Learned())
    seen = calm()
    decision, expected = guard.decide(seen), best(seen)
    assert replace(decision, scores=None) == replace(expected, scores=None)
    assert decision.scores is not None
    assert (guard.name, guard.version) == ("learned", "7")
    assert (guard.decisions, sum(guard.fallbacks.values())) == (1, 0)


def test_no_model() -> None:
    guard = guarded(None)
    trips_with(guard, calm(), FallbackReason.NO_MODEL)
    assert (guard.name, guard.version) == ("marginal-cost", "")


def test_deadline() -> None:
    clock = Time()

    def slow(observation: Observation) -> Decision:
        clock.now_s += 0.006
        return best(observation)

    trips_with(guarded(Learned(slow), clock), calm(), FallbackReason.DEADLINE)
    assert not guarded(Learned(slow), clock, deadline_ms=7.0).decide(calm()).fallback_reason


def test_a_stale_snapshot_is_left_to_the_fallbacks() -> None:
    learned, seen = Learned(), calm()
    seen.replicas[:3, R["age_s"]] = 30.0
    decision = trips_with(guarded(learned), seen, FallbackReason.STALE)
    # It leans on the router's own account of what it sent, as p2c does, and makes more of it.
    assert decision.policy == "marginal-cost"
    assert learned.asked == 0
    seen.replicas[0, R["marginal_cost"]] = np.nan
    assert trips_with(guarded(learned), seen, FallbackReason.STALE).policy == "p2c"
    seen = calm()
    seen.replicas[:3, R["age_s"]] = 30.0
    seen.replicas[:2, R["age_s"]] = 0.1
    assert not guarded(learned).decide(seen).fallback_reason


def test_a_masked_replicas_age_does_not_matter() -> None:
    seen = calm()
    seen.replicas[:3, R["age_s"]] = 60.0
    seen.mask[:3] = False
    assert guarded(Learned()).decide(seen).choice == 3


def test_features_outside_the_training_range() -> None:
    learned, seen = Learned(), calm()
    learned.ranges = Ranges.of(seen.replicas, seen.request)
    assert not guarded(learned).decide(seen).fallback_reason
    overload = calm()
    overload.replicas[:, : R["raw_tpot_s"]] = 1e6
    trips_with(guarded(learned), overload, FallbackReason.OUT_OF_RANGE)


def test_an_exception() -> None:
    def breaks(observation: Observation) -> Decision:
        raise RuntimeError("the graph is gone")

    guard = guarded(Learned(breaks))
    trips_with(guard, calm(), FallbackReason.ERROR)
    assert "the graph is gone" in guard.last_error


@pytest.mark.parametrize("choice", [-1, 0, 4])
def test_an_invalid_or_masked_choice(choice: int) -> None:
    seen = calm()
    seen.mask[0] = False
    trips_with(guarded(Learned(choose(choice))), seen, FallbackReason.INVALID_CHOICE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite(bad: float) -> None:
    scores = np.array([1.0, 2.0, bad, 0.0], dtype=np.float32)
    seen = calm()
    trips_with(guarded(Learned(choose(1, scores))), seen, FallbackReason.NON_FINITE)
    seen.mask[2] = False
    assert guarded(Learned(choose(1, scores))).decide(seen).choice == 1


def test_heads_that_disagree() -> None:
    opposed = Ensemble([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0]])
    trips_with(guarded(opposed), calm(), FallbackReason.DISAGREEMENT)
    agreed = Ensemble([[0, 9, 0, 0], [0, 8, 1, 0], [0, 7, 0, 0]])
    assert guarded(agreed).decide(calm()).choice == 1
    agreed.heads[0, 0] = np.nan
    trips_with(guarded(agreed), calm(), FallbackReason.NON_FINITE)


def test_a_choice_far_slower_than_the_best() -> None:
    seen = costs(calm(), [0.5, 0.2, 0.2, 0.2])
    seen.replicas[0, R["ttft_s"]] = 1.9
    trips_with(guarded(Learned(choose(0))), seen, FallbackReason.SLOW_CHOICE)
    seen.replicas[0, R["ttft_s"]] = 1.7  # the limit is 4 x 0.2 s + 1 s
    assert guarded(Learned(choose(0))).decide(seen).choice == 0


@pytest.mark.parametrize("cost", [0.1, 0.2, 0.29])
def test_a_slow_choice_that_is_not_dear_stands(cost: float) -> None:
    seen = costs(calm(), [cost, 0.2, 0.2, 0.2])
    seen.replicas[0, R["ttft_s"]] = 30.0
    assert guarded(Learned(choose(0))).decide(seen).choice == 0
    seen = costs(seen, [np.nan, 0.2, 0.2, 0.2])
    trips_with(guarded(Learned(choose(0))), seen, FallbackReason.SLOW_CHOICE)


def test_whoever_has_lost_his_way_makes_no_slow_choice_however_cheap() -> None:
    lost = costs(calm(), [9.0, 0.2, 0.2, 0.2])
    slow = costs(calm(), [0.2, 0.2, 0.2, 0.2])
    slow.replicas[0, R["ttft_s"]] = 30.0
    guard = guarded(Learned(choose(0)), latch_trips=1000, latch_window=1000)
    assert guard.decide(slow).choice == 0
    for _ in range(400):
        guard.decide(lost)
    trips_with(guard, slow, FallbackReason.SLOW_CHOICE)


@pytest.mark.parametrize("priority", list(Priority))
def test_batch_requests_may_be_made_to_wait(priority: Priority) -> None:
    seen = costs(calm(), [0.5, 0.2, 0.2, 0.2])
    seen.request[REQUEST_INDEX["priority"]] = priority
    seen.replicas[0, R["ttft_s"]] = 30.0
    guard = guarded(Learned(choose(0)))
    if priority >= Priority.BATCH:
        assert guard.decide(seen).choice == 0
        seen.replicas[0, R["marginal_cost"]] += 9.0
        for _ in range(400):
            guard.decide(seen)
        assert guard.fallbacks[FallbackReason.SLOW_CHOICE] > 0, "but not by who has lost his way"
    else:
        trips_with(guard, seen, FallbackReason.SLOW_CHOICE)


@pytest.mark.parametrize(("cost", "latches"), [(0.5, False), (9.0, True)])
def test_slow_choices_latch_only_where_choices_are_dear(cost: float, *, latches: bool) -> None:
    seen = costs(calm(), [cost, 0.2, 0.2, 0.2])
    seen.replicas[0, R["ttft_s"]] = 30.0
    guard = guarded(Learned(choose(0)))
    for _ in range(100):
        assert guard.decide(seen).fallback_reason, "each by itself is replaced"
    assert guard.latched == latches


def test_one_replica_with_too_large_a_share() -> None:
    guard = guarded(Learned(choose(0)), share_window=40, latch_trips=1000, latch_window=1000)
    seen = calm(8)
    seen.replicas[0, R["marginal_cost"]] += 0.4
    # Limit: 1 - (7/8)^4 = 41 %. While it is no busier than the others, it may have everything.
    assert all(not guard.decide(seen).fallback_reason for _ in range(100))
    seen.replicas[0, R["queue"]] = 5.0
    trips_with(guard, seen, FallbackReason.CROWDED)
    reasons = [guard.decide(seen).fallback_reason for _ in range(400)]
    served = reasons[-100:].count("")
    assert 0 < served < 60


def test_a_crowded_replica_may_have_more_where_marginal_cost_would_send_it_more_too() -> None:
    guard = guarded(Learned(choose(0)), share_window=40)
    seen = calm(8)
    seen.replicas[0, R["queue"]] = 5.0
    seen.replicas[0, R["marginal_cost"]] -= 0.1  # given up, so that the others keep their objectives
    assert all(not guard.decide(seen).fallback_reason for _ in range(100))
    seen.replicas[:, R["marginal_cost"]] = np.nan
    assert guard.decide(seen).fallback_reason == FallbackReason.CROWDED


def costs(seen: Observation, values: list[float]) -> Observation:
    seen.replicas[:, R["marginal_cost"]] = values
    return seen


def test_choices_that_cost_more_than_the_better_of_two_drawn_at_random() -> None:
    guard = guarded(Learned(choose(3)), cost_window=10, cost_slack=0.5)
    # The better of two drawn from these costs 1.17 on average, and the limit is 1 above that.
    seen = costs(calm(), [1.0, 1.0, 2.0, 4.0])
    reasons = [guard.decide(seen).fallback_reason for _ in range(12)]
    assert reasons[0] == ""
    assert reasons[-1] == FallbackReason.COSTLY
    assert guard.fallbacks[FallbackReason.COSTLY] > 0


@pytest.mark.parametrize(("level", "is_dear"), [(0.2, True), (9.0, False), (90.0, True)])
def test_where_every_choice_is_dear_a_little_more_says_nothing(level: float, *, is_dear: bool) -> None:
    # Always 2.4 beyond the better of two: twelve times the cheapest, or a quarter of it. Beyond what is
    # credible there is a backlog, and a little more is dear again.
    seen = costs(calm(), [level, level, level + 1.0, level + 2.6])
    guard = guarded(Learned(choose(3)))
    for _ in range(300):
        guard.decide(seen)
    assert (guard.fallbacks[FallbackReason.COSTLY] > 0) == is_dear
    assert guard.latched == is_dear


def test_a_dear_choice_now_and_then_is_the_policys_business() -> None:
    learned = Learned()
    guard = guarded(learned, cost_window=10, cost_slack=0.5)
    seen = costs(calm(), [1.0, 1.0, 2.0, 4.0])
    for i in range(200):
        learned.answer = choose(3 if i % 6 == 5 else 0)
        assert guard.decide(seen).fallback_reason == ""


def test_a_policy_that_would_cost_too_much_stays_latched() -> None:
    clock = Time()
    guard = guarded(
        Learned(choose(3)), clock, cost_window=10, latch_trips=5, latch_window=20, latch_hold_s=30.0
    )
    seen = costs(calm(), [1.0, 1.0, 2.0, 9.0])
    while not guard.latched:
        guard.decide(seen)
    for round_ in range(3):
        clock.now_s = 31.0 * (1 + round_)
        trips_with(guard, seen, FallbackReason.LATCHED)  # judged anew: one choice says nothing yet
        trips_with(guard, seen, FallbackReason.COSTLY)
        for _ in range(100):
            trips_with(guard, seen, FallbackReason.LATCHED)


def test_a_policy_whose_choices_cost_less_by_now_serves_again() -> None:
    clock, learned = Time(), Learned(choose(3))
    guard = guarded(
        learned, clock, cost_window=300, latch_trips=5, latch_window=20, latch_hold_s=30.0, latch_clean=9
    )
    seen = costs(calm(), [1.0, 1.0, 2.0, 99.0])
    while not guard.latched:
        guard.decide(seen)
    clock.now_s = 31.0
    learned.answer = choose(0)
    for _ in range(9):
        trips_with(guard, seen, FallbackReason.LATCHED)
    assert guard.decide(seen).fallback_reason == ""
    assert not guard.latched


@pytest.mark.parametrize(
    ("priority", "latches"), [(Priority.INTERACTIVE, True), (Priority.BATCH, False)]
)
def test_dear_choices_for_batch_requests_count_a_quarter(priority: Priority, latches: bool) -> None:
    # One in three is sent where it costs 2.83 more than the better of two would; the limit is 0.5.
    learned = Learned()
    guard = guarded(learned, cost_window=30, cost_slack=0.5, cost_factor=1.0)
    seen = costs(calm(), [1.0, 1.0, 2.0, 4.0])
    for i in range(300):
        learned.answer = choose(3 if i % 3 == 0 else 0)
        seen.request[REQUEST_INDEX["priority"]] = priority if i % 3 == 0 else Priority.INTERACTIVE
        guard.decide(seen)
    assert (guard.fallbacks[FallbackReason.COSTLY] > 0) == latches


def test_costs_that_are_not_numbers_say_nothing() -> None:
    guard = guarded(Learned(choose(3)), cost_window=1)
    seen = costs(calm(), [1.0, 1.0, np.nan, 9.0])
    assert [guard.decide(seen).fallback_reason for _ in range(5)] == [""] * 5
    trips_with(guard, costs(calm(), [1.0, 1.0, 2.0, 9.0]), FallbackReason.COSTLY)


@given(n=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_better_of_two_is_the_mean_over_all_pairs(n: int, seed: int) -> None:
    ordered = np.sort(np.random.default_rng(seed).random(n).astype(np.float32))
    pairs = [min(ordered[i], ordered[j]) for i in range(n) for j in range(i)] or [ordered[0]]
    assert float(ordered @ better_of_two_weights(n)) == pytest.approx(np.mean(pairs), rel=1e-5)


def test_only_candidates_that_are_allowed_are_compared() -> None:
    learned, seen = Learned(choose(3)), costs(calm(), [9.0, 9.0, 1.0, 1.2])
    seen.mask[:2] = False
    seen.replicas[:2, R["ttft_s"]] = 1e-6
    seen.replicas[:2, R["age_s"]] = 50.0
    assert [guarded(learned, cost_window=1).decide(seen).choice for _ in range(3)] == [3, 3, 3]
    seen.replicas[3, R["ttft_s"]] = 9.0
    trips_with(guarded(learned, cost_factor=1.1), seen, FallbackReason.SLOW_CHOICE)


def test_a_fast_replica_may_have_a_larger_share() -> None:
    seen = calm(2)
    seen.replicas[0, [R["prefill_token_s"], R["decode_base_s"]]] /= 3.0
    np.testing.assert_allclose(fair_share(seen.replicas), [0.75, 0.25], rtol=1e-5)


def test_it_latches_rests_probes_and_opens_again() -> None:
    clock, learned = Time(), Learned(choose(NO_CANDIDATE))
    guard = guarded(learned, clock, latch_trips=5, latch_window=20, latch_hold_s=30.0, latch_clean=10)
    for _ in range(5):
        trips_with(guard, calm(), FallbackReason.INVALID_CHOICE)
    assert (guard.latched, guard.closings, learned.asked) == (True, 1, 5)

    learned.answer = best
    clock.now_s = 29.0
    trips_with(guard, calm(), FallbackReason.LATCHED)
    assert learned.asked == 5, "while it rests it is not asked"

    clock.now_s = 31.0
    for _ in range(10):
        trips_with(guard, calm(), FallbackReason.LATCHED)
    assert learned.asked == 15, "while it is probed it is asked, but the fallback serves"
    assert not guard.latched
    assert not guard.decide(calm()).fallback_reason


def test_a_trip_while_probed_makes_it_rest_again() -> None:
    clock, learned = Time(), Learned(choose(NO_CANDIDATE))
    guard = guarded(learned, clock, latch_trips=2, latch_window=20, latch_hold_s=30.0, latch_clean=3)
    guard.decide(calm())
    guard.decide(calm())
    clock.now_s = 31.0
    trips_with(guard, calm(), FallbackReason.INVALID_CHOICE)
    trips_with(guard, calm(), FallbackReason.LATCHED)
    assert learned.asked == 3
    assert guard.closings == 1


def test_rare_trips_do_not_latch() -> None:
    learned = Learned()
    guard = guarded(learned, latch_trips=5, latch_window=20)
    for i in range(400):
        learned.answer = choose(NO_CANDIDATE) if i % 10 == 0 else best
        guard.decide(calm())
    assert not guard.latched
    assert guard.fallbacks[FallbackReason.INVALID_CHOICE] == 40


def test_another_model_starts_unlatched() -> None:
    guard = guarded(Learned(choose(NO_CANDIDATE)), latch_trips=1, latch_window=20)
    guard.decide(calm())
    assert guard.latched
    guard.replace(Learned())
    assert not guard.decide(calm()).fallback_reason
    guard.replace(None)
    trips_with(guard, calm(), FallbackReason.NO_MODEL)


def test_marginal_cost_decides_before_p2c_only_where_it_is_finite() -> None:
    seen = calm()
    seen.replicas[:, R["marginal_cost"]] = [4.0, 3.0, 2.0, 1.0]
    assert guarded(None).decide(seen).choice == 3
    seen.replicas[1, R["marginal_cost"]] = np.nan
    assert guarded(None).decide(seen).policy == "p2c"
    assert guarded(None, fallbacks=("p2c",)).decide(calm()).policy == "p2c"


def test_nobody_to_choose_is_not_a_trip() -> None:
    seen = calm()
    seen.mask[:] = False
    guard = guarded(Learned())
    assert guard.decide(seen).choice == NO_CANDIDATE
    assert sum(guard.fallbacks.values()) == 0


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ConfigError, match="did you mean 'p2c'"):
        guarded(None, fallbacks=("p2",))
    with pytest.raises(ConfigError, match="fallbacks"):
        Guard(None, [])
    assert all(field.description for field in GuardSettings.model_fields.values())


def test_a_guarded_policy_keeps_the_contract_with_and_without_a_model() -> None:
    def guard(name: str, seed: int) -> Guard:
        policy = make_policy(name, seed=seed) if name else None
        # p2c is judged by its own formula, not by what choices cost.
        return Guard.make(policy, GuardSettings(cost_slack=1e6), seed=seed, clock=Time())

    for name in ("p2c", "marginal-cost", ""):
        check_policy(partial(guard, name))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_whatever_the_learned_policy_answers_an_allowed_replica_is_chosen(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)

    def anything(observation: Observation) -> Decision:
        if rng.random() < 0.2:
            raise ValueError("no")
        scores = rng.choice(np.array([0.0, 1.0, np.nan, np.inf], np.float32), size=n)
        return Decision(int(rng.integers(-2, n + 2)), "learned", scores=scores)

    guard = guarded(Learned(anything))
    for _ in range(20):
        seen = sample_observation(rng, n)
        if rng.random() < 0.3:
            seen.replicas[rng.integers(n)] = np.nan
        decision = guard.decide(seen)
        assert seen.mask[decision.choice]
    assert guard.decisions == 20
    assert sum(guard.fallbacks.values()) <= 20


@given(
    heads=st.lists(st.lists(st.floats(-3.0, 3.0), min_size=4, max_size=4), min_size=2, max_size=4),
    limit=st.floats(0.01, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_close_heads_are_told_from_disagreeing_ones(heads: list[list[float]], limit: float) -> None:
    logits = np.array(heads, dtype=np.float32)
    found = disagreement(logits)
    assume(abs(found - limit) > 1e-6)
    assert disagrees(logits, limit) == (found > limit)


def test_two_opposed_heads_are_the_worst_case() -> None:
    heads = np.array([[0.5, -0.5], [-0.5, 0.5]], dtype=np.float32)
    # The total variation of the two is tanh(1 / 2); of each from their average, half of it.
    assert disagreement(heads) == pytest.approx(0.5 * np.tanh(0.5))
    assert not disagrees(heads, 0.24)
    assert disagrees(heads, 0.23)


def test_disagreement_is_zero_for_equal_heads_and_two_thirds_for_three_opposed() -> None:
    assert disagreement(np.zeros((3, 5), dtype=np.float32)) == pytest.approx(0.0, abs=1e-6)
    assert disagreement(np.eye(3, dtype=np.float32) * 100) == pytest.approx(2 / 3)


@given(choices=st.lists(st.integers(0, 4), max_size=60), size=st.integers(1, 20))
def test_the_share_window_counts_the_last_decisions(choices: list[int], size: int) -> None:
    window = ShareWindow(size)
    for choice in choices:
        window.record(choice, 5)
    last = choices[-size:]
    for replica in range(5):
        expected = last.count(replica) / len(last) if last else 0.0
        assert window.share(replica) == pytest.approx(expected)


def test_the_shipped_configuration_shows_the_defaults() -> None:
    path = CONFIG_ROOT / "policies" / "guard.yaml"
    assert load_settings(path, GuardSettings) == GuardSettings()
    assert set(read_yaml(path)) == set(GuardSettings.model_fields)
