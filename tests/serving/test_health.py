"""Out after three failures, back after two successes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors import ledger as L
from steersman.serving.config import LimitSettings, TimeoutSettings
from steersman.serving.health import HealthCheck, HealthState
from steersman.serving.parts import build_parts
from steersman.serving.upstream import Upstream
from tests.serving.backends import backends, completion, whole
from tests.serving.harness import chat, rig, settings_for


def test_the_first_check_is_believed_either_way() -> None:
    assert not HealthState(3, 2).failed()
    assert HealthState(3, 2).check_passed()


def test_three_failures_out_two_successes_in() -> None:
    state = HealthState(3, 2)
    state.check_passed()
    assert [state.failed() for _ in range(4)] == [True, True, False, False]
    assert [state.check_passed() for _ in range(2)] == [False, True]


def test_a_success_between_forgives() -> None:
    state = HealthState(3, 2)
    state.check_passed()
    for _ in range(5):
        state.failed()
        state.failed()
        state.request_passed()
    assert state.healthy


def test_a_request_that_passes_does_not_bring_a_replica_back() -> None:
    state = HealthState(3, 2)
    state.failed()
    state.request_passed()
    assert not state.healthy
    state.check_passed()
    state.failed()
    state.check_passed()
    assert not state.healthy


@given(st.lists(st.sampled_from(["pass", "fail", "request"]), max_size=40))
def test_it_never_moves_on_less_than_it_should(history: list[str]) -> None:
    state = HealthState(3, 2)
    state.check_passed()
    failures = successes = 0
    for event in history:
        before = state.healthy
        if event == "pass":
            state.check_passed()
            failures, successes = 0, successes + 1
        elif event == "request":
            state.request_passed()
            failures = 0
        else:
            state.failed()
            failures, successes = failures + 1, 0
        if before and not state.healthy:
            assert failures == 3
        if not before and state.healthy:
            assert successes >= 2


async def test_a_check_takes_a_replica_out_and_back() -> None:
    async with backends(whole(completion())) as fleet:
        settings = settings_for(fleet)
        parts = build_parts(settings)
        async with Upstream(TimeoutSettings(), LimitSettings()) as upstream:
            check = parts.checks[0]
            assert isinstance(check, HealthCheck)
            check._upstream = upstream
            row = parts.fleet.state[0]
            assert await check.step(0.0) == settings.health.interval_s
            assert row[L.HEALTHY] == 1.0
            assert parts.fleet.replicas[0].cards["m"]["owned_by"] == "b0"
            parts.fleet.believe(parts.fleet.replicas[0], (1, 2, 3), 0.0)
            fleet[0].health_status = 503
            for _ in range(3):
                await check.step(0.0)
            assert row[L.HEALTHY] == 0.0
            assert parts.fleet.prefixes.blocks_held(0) == 0, "it will come back with an empty cache"
            fleet[0].health_status = 200
            for _ in range(2):
                await check.step(0.0)
            assert row[L.HEALTHY] == 1.0


async def test_a_backend_without_a_model_list_is_no_replica_unless_its_models_are_configured() -> None:
    async with backends(whole(completion())) as fleet:
        fleet[0].models = []
        for listed, healthy in (([], False), (["m"], True)):
            backend = {"id": "b0", "url": fleet[0].url, "models": listed}
            parts = build_parts(settings_for(fleet, backends=[backend]))
            async with Upstream(TimeoutSettings(), LimitSettings()) as upstream:
                check = parts.checks[0]
                assert isinstance(check, HealthCheck)
                check._upstream = upstream
                await check.step(0.0)
            assert parts.fleet.replicas[0].health.healthy is healthy


async def test_where_all_are_out_by_requests_those_that_pass_their_checks_are_asked() -> None:
    bad = whole(b"{}", status=500)
    async with rig(bad, bad, health={"interval_s": 30.0}) as (router, fleet):
        for i in range(8):
            assert (await router.post(chat(f"{i}")))[0] >= 500
            router.parts.monitor.request_failed(router.parts.fleet.replicas[i % 2], "test")
        assert not any(replica.health.healthy for replica in router.parts.fleet.replicas)
        for backend in fleet:
            backend.answer = whole(completion())
        assert (await router.post())[:2] == (200, completion())
        for replica in router.parts.fleet.replicas:
            router.parts.monitor.failed(replica, "a check")
        status, got, _ = await router.post()
        assert status == 503
        assert b"no_healthy_replica" in got
