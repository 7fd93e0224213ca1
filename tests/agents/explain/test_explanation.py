"""Every decision can be explained, from the router's own objects and from its log alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.explain import Explanation, explain, explain_record
from steersman.agents.explain.reasons import GUARD
from steersman.agents.guard import FallbackReason
from steersman.predictors import ledger as L
from steersman.predictors.features import COST_TERMS, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.serving.headers import NO_HINTS
from steersman.serving.parts import Parts, build_parts
from steersman.serving.router import Route
from steersman.traces.errors import TraceError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Decision, Outcome, Request, Status
from tests.serving.harness import settings_for

PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b", "l40s-llama-3.1-8b")


def parts_for(policy: str, replicas: int) -> Parts:
    listed = [
        {"id": f"r{i}", "url": f"http://r{i}", "models": ["m"], "profile": PROFILES[i % 3]}
        for i in range(replicas)
    ]
    return build_parts(settings_for([], backends=listed, policy={"name": policy}))


def route_of(parts: Parts, tokens: int = 500, hashes: tuple[int, ...] = ()) -> Route:
    request = Request("req-1", parts.clock(), tokens, model="m", block_hashes=hashes)
    prepared = parts.router.prepare(request, parts.fleet.pools["m"], NO_HINTS)
    route = parts.router.choose(prepared)
    assert route is not None
    return route


def record_of(route: Route, **known: object) -> OutcomeRecord:
    request = route.prepared.request
    ended = Outcome("req-1", Status.OK, route.decision.choice, 500, 40, 64, 0.0, 0.5, 0.02, 1.3)
    logged: dict[str, object] = {
        "decided_at_s": route.dispatched_s,
        "queued_s": 0.1,
        "replica_ids": route.snapshot.replica_ids,
        "state": route.snapshot.state,
        "match_tokens": route.match_tokens,
        "mask": route.observation.mask,
        "request_features": route.prepared.features,
        "replica_id": route.replica.id,
    }
    return OutcomeRecord.of(request, route.decision, ended, arrival_unix_s=0.0, **(logged | known))


def explained(route: Route) -> Explanation:
    return explain(route.observation, route.decision, route.snapshot, request_id="req-1")


def busy(parts: Parts, seed: int) -> None:
    """Load of any kind everywhere; some replicas down or draining, never all."""
    rng = np.random.default_rng(seed)
    for row in parts.fleet.state:
        for _ in range(rng.integers(0, 60)):
            L.on_dispatch(row, float(rng.integers(1, 4000)), 10.0, float(rng.integers(1, 900)))
        L.on_scrape(
            row, parts.clock() - rng.uniform(0, 3), row[L.INFLIGHT], float(rng.integers(0, 9)), 0.4
        )
        if rng.random() < 0.2:
            row[rng.choice((L.HEALTHY, L.DRAINING))] = row[L.DRAINING] = float(rng.random() < 0.5)
    parts.fleet.state[0, L.HEALTHY] = 1.0
    parts.fleet.state[0, L.DRAINING] = 0.0


@given(
    seed=st.integers(0, 2**20),
    replicas=st.integers(1, 9),
    policy=st.sampled_from(["marginal-cost", "p2c", "round-robin", "learned", "llm-d-default"]),
)
def test_the_log_tells_what_the_router_saw(seed: int, replicas: int, policy: str) -> None:
    parts = parts_for(policy, replicas)
    busy(parts, seed)
    route = route_of(parts)
    told = explained(route)
    logged = OutcomeRecord.from_json(record_of(route).to_json())
    again = explain_record(logged)
    assert again.candidates == told.candidates
    assert again.reasons[: len(told.reasons)] == told.reasons
    for i, replica in enumerate(route.snapshot.replica_ids):
        (candidate,) = [each for each in told.candidates if each.replica == replica]
        assert list(candidate.features.values()) == route.observation.replicas[i].tolist()
        assert bool(candidate.barred) != bool(route.observation.mask[i])
        assert sum(candidate.cost.values()) == pytest.approx(candidate.marginal_cost, rel=1e-4, abs=1e-5)
    assert [each.replica for each in told.candidates if each.chosen] == [told.replica]
    assert tuple(told.request) == REQUEST_FEATURES
    assert tuple(told.candidates[0].features) == REPLICA_FEATURES
    assert tuple(told.candidates[0].cost) == COST_TERMS
    assert all(sentence.endswith(".") for sentence in again.reasons)


def test_the_best_comes_first_and_the_second_best_is_named() -> None:
    parts = parts_for("marginal-cost", 4)
    busy(parts, 3)
    parts.fleet.state[:, (L.HEALTHY, L.DRAINING)] = 1.0, 0.0
    told = explained(route_of(parts))
    costs = [candidate.marginal_cost for candidate in told.candidates]
    assert costs == sorted(costs)
    assert told.candidates[0].chosen
    text = " ".join(told.reasons)
    assert f"marginal-cost chose {told.replica} among 4 replicas" in text
    assert f"of {told.candidates[1].replica}, the second best" in text
    assert f"less than on {told.candidates[1].replica}" in text


def test_a_cached_prompt_is_a_reason() -> None:
    parts = parts_for("marginal-cost", 3)
    hashes = tuple(range(1, 200))
    parts.fleet.prefixes.insert(0, hashes, 0.0)
    told = explained(route_of(parts, 3200, hashes))
    assert told.replica == "r0"
    assert any("of the prompt cached, not 0%" in sentence for sentence in told.reasons)


def test_who_could_not_be_chosen_and_why() -> None:
    parts = parts_for("round-robin", 4)
    fleet = parts.fleet
    fleet.set_healthy(fleet.replicas[1], healthy=False)
    fleet.drain(fleet.replicas[2])
    fleet.replicas[3].resting_until_s = parts.clock() + 100.0
    told = explained(route_of(parts))
    barred = {candidate.replica: candidate.barred for candidate in told.candidates}
    assert barred == {"r0": "", "r1": "down", "r2": "draining", "r3": "tried, resting or silent"}
    text = " ".join(told.reasons)
    assert "r1 (down)" in text
    assert "Nothing else could be chosen." in text


def test_nobody_could_be_chosen() -> None:
    parts = parts_for("round-robin", 2)
    route = route_of(parts)
    seen = replace(route.observation, mask=np.zeros(2, dtype=np.bool_))
    told = explain(seen, Decision(-1, "round-robin"), route.snapshot)
    assert told.replica == ""
    assert told.reasons[0].startswith("None of 2 replicas could be chosen: ")


@pytest.mark.parametrize("reason", FallbackReason)
def test_every_reason_of_the_guard_has_words(reason: FallbackReason) -> None:
    route = route_of(parts_for("marginal-cost", 3))
    decision = replace(route.decision, fallback_reason=reason.value)
    told = explain(route.observation, decision, route.snapshot)
    assert f"The guard had marginal-cost decide because {GUARD[reason]}." in told.reasons


def test_chance_is_called_chance() -> None:
    route = route_of(parts_for("marginal-cost", 3))
    scores = np.array((0.0, 2.0, 1.0), dtype=np.float32)
    for choice, said in (
        (0, "Chosen by lot, not by score: 0 against 2 of r1, the best."),
        (1, "second"),
    ):
        decision = Decision(choice, "learned", "v1", 0.25, scores=scores)
        told = explain(route.observation, decision, route.snapshot)
        assert any(said in sentence for sentence in told.reasons)
        assert "with probability 0.25" in told.reasons[0]


def test_what_was_expected_and_what_came() -> None:
    record = record_of(
        route_of(parts_for("marginal-cost", 2)), ttft_p50_s=0.25, ttft_p90_s=0.5, tpot_p50_s=0.015
    )
    *_, expected, came = explain_record(record).reasons
    assert "first token after 0.25 s (9 in 10 within 0.5 s), then 15 ms a token" in expected
    assert came.startswith("What came: first token after 0.4 s, then 20 ms a token for 40 tokens")
    failed = replace(record, status=Status.FAILED, error="status_500", retries=2)
    *_, retried, ended = explain_record(failed).reasons
    assert "after 2 failed attempts" in retried
    assert ended == "It ended as failed (status_500)."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replica_ids": (), "error": "queue_full"}, "before a replica was chosen (queue_full)"),
        ({"state": np.zeros((2, 5))}, "another version"),
        ({"request_features": np.zeros(3, dtype=np.float32)}, "another version"),
    ],
)
def test_what_cannot_be_explained_is_told_in_one_line(changes: dict[str, object], said: str) -> None:
    record = record_of(route_of(parts_for("marginal-cost", 2)), **changes)
    with pytest.raises(TraceError) as raised:
        explain_record(record)
    assert said in str(raised.value)
