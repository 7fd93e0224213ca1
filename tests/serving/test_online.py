"""Live errors and drift on the metrics page, from real requests."""

from __future__ import annotations

import gc
import math

import pytest

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.predictors.drift import REFERENCE_OUTCOMES
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings
from steersman.serving.metrics import RouterMetrics
from steersman.serving.online import OnlineErrors
from steersman.serving.replica import Replica
from steersman.serving.trust_settings import BreakerSettings
from tests.serving.backends import completion, events, reset, stream, whole
from tests.serving.harness import chat, rig

HARDWARE = "a100-llama-3.1-8b"


def sample(name: str, target: str) -> str:
    hardware = "any" if target == "output" else HARDWARE
    return f'steersman_prediction_{name}{{hardware="{hardware}",model="m",target="{target}"}}'


async def test_every_outcome_is_compared_with_its_prediction() -> None:
    async with rig(stream(events(6))) as (router, _):
        for _ in range(3):
            await router.post(chat(stream=True))
        assert router.parts.errors.outcomes == 3
        for target in ("ttft", "tpot", "output"):
            assert await router.metric(sample("coverage_p90", target)) >= 0.0
            _, page = await router.get("/metrics")
            assert sample("mdape", target) in page.decode()
            assert sample("drift", target) + " 0.0" in page.decode()


async def test_what_says_nothing_is_left_out() -> None:
    """Failures, second attempts, and the first answers of a replica that has just come up."""
    async with rig(reset, whole(completion())) as (router, fleet):
        answers = [await router.post() for _ in range(2)]
        assert [status for status, *_ in answers] == [200, 200]
        retried = len(fleet[0].received)
        assert retried >= 1
        assert router.parts.errors.outcomes == 2 - retried
        fleet[0].answer = whole(completion())
        for row in router.parts.fleet.state:
            row[L.COLD_TPOT] = 1.0
        before = router.parts.errors.outcomes
        for _ in range(2):
            await router.post()
        assert router.parts.errors.outcomes == before
        for _ in range(2):
            await router.post()
        assert router.parts.errors.outcomes == before + 2


async def test_an_error_that_is_streamed_teaches_nothing() -> None:
    async with rig(stream(events(2), status=400)) as (router, _):
        state = router.parts.fleet.state
        before = state[:, [L.MEAN_TTFT_S, L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT]].copy()
        await router.post(chat(stream=True))
        assert (state[:, [L.MEAN_TTFT_S, L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT]] == before).all()
        assert router.parts.errors.outcomes == 0


def test_drift_is_counted_once_until_other_models_serve() -> None:
    metrics = RouterMetrics()
    errors = OnlineErrors(metrics)
    key = ("m", HARDWARE, "ttft")
    for _ in range(REFERENCE_OUTCOMES + 50):
        errors.compare(key, 0.1, 0.1, 0.2)
    assert errors.drifted == []
    for _ in range(100):
        errors.compare(key, 0.3, 0.1, 0.2)
    assert errors.drifted == [key]
    page = metrics.page().decode()
    assert sample("drift_alarms_total", "ttft") + " 1.0" in page
    errors.restart()
    assert errors.drifted == []
    assert sample("mdape", "ttft") + " NaN" in metrics.page().decode()


def test_a_replica_that_takes_longer_is_told_though_predictions_are_corrected() -> None:
    """And forgotten with the replica."""
    metrics = RouterMetrics()
    errors = OnlineErrors(metrics)
    settings = BackendSettings(url="http://127.0.0.1:1")
    one, other = (
        Replica(i, settings, load_profile(HARDWARE), HealthSettings(), BreakerSettings(), {}, {})
        for i in range(2)
    )
    for factor, outcomes in ((1.0, 80), (2.5, 30)):
        for _ in range(outcomes):
            errors.compare(("m", HARDWARE, "tpot"), 0.01 * factor, 0.01 * factor, 0.02 * factor)
            errors.keep_pace("m", one, "tpot", 0.01 * factor, 0.01)
            errors.keep_pace("m", other, "tpot", 0.01, 0.01)
    assert errors.drifted == [("m", HARDWARE, "raw_tpot")]
    assert sample("drift_alarms_total", "raw_tpot") + " 1.0" in metrics.page().decode()
    errors.restart()
    assert errors.drifted == []
    assert sample("drift", "raw_tpot") in metrics.page().decode()
    del one, other
    gc.collect()
    assert sample("drift", "raw_tpot") not in metrics.page().decode()


@pytest.mark.parametrize("actual", [0.0, -1.0, math.nan, math.inf])
def test_what_was_not_measured_is_not_compared(actual: float) -> None:
    metrics = RouterMetrics()
    OnlineErrors(metrics).compare(("m", HARDWARE, "tpot"), actual, 0.1, 0.2)
    assert 'target="tpot"' not in metrics.page().decode()
