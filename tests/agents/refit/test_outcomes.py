"""What the log teaches is what the router saw, and only what can teach."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.agents.refit.outcomes import Taught, logged_outcomes, taught, teaches
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.latency import LATENCY_OUTPUTS, AnalyticLatency
from steersman.traces.outcome_log import read_newest, read_outcomes
from steersman.traces.schema import Status
from tests.agents.refit.logs import record_of, write_log
from tests.serving.backends import completion, events, stream, whole
from tests.serving.harness import chat, rig


async def test_the_models_see_what_they_saw_when_the_router_asked_them(tmp_path: Path) -> None:
    async with rig(stream(events(6)), stream(events(9)), outcome_log={"directory": str(tmp_path)}) as (
        router,
        fleet,
    ):
        for words in (1, 50, 300, 20):
            await router.post(chat("word " * words, stream=True))
        fleet[0].answer = fleet[1].answer = whole(completion())
        await router.post()
    records = list(read_outcomes(tmp_path))
    outcomes = logged_outcomes(read_newest(tmp_path, 100, taught))
    assert len(outcomes) == 5
    assert len(outcomes.streamed) == 4
    predicted = AnalyticLatency().predict(outcomes.replicas[:, None], outcomes.requests)[:, 0]
    logged = np.array([[getattr(record, name) for name in LATENCY_OUTPUTS] for record in records])
    order = np.argsort([record.arrival_unix_s + record.e2e_s for record in records])
    # p90 is logged as wide as earlier outcomes asked for; refits judge models by their own.
    assert np.array_equal(predicted[:, ::2], logged[order][:, ::2])
    assert np.all(logged[:, 1::2] >= logged[:, ::2])
    assert np.array_equal(outcomes.requests, [records[i].request_features for i in order])


def test_reading_gives_back_what_was_written(tmp_path: Path, lessons: list[Taught]) -> None:
    written = [lesson._replace(ended_s=1e9 + i) for i, lesson in enumerate(lessons[:300])]
    read = read_newest(write_log(tmp_path, written), 200, taught)
    assert len(read) == 200, "the newest"
    expected, found = logged_outcomes(written[100:]), logged_outcomes(read)
    assert np.array_equal(found.replicas, expected.replicas)
    assert np.array_equal(found.requests, expected.requests)
    np.testing.assert_allclose(found.ttft_s, expected.ttft_s, atol=1e-9)
    np.testing.assert_allclose(found.ended_s, expected.ended_s, rtol=0, atol=1e-5)
    assert np.array_equal(found.tpot_s, expected.tpot_s)


COLD = np.zeros((1, L.STATE_WIDTH))
COLD[0, L.COLD_TTFT] = 1.0


@pytest.mark.parametrize(
    "change",
    [
        *({"status": status} for status in Status if status is not Status.OK),
        {"retries": 1},
        {"choice": -1},
        {"choice": 1},
        {"state": COLD},
        {"state": np.zeros((1, L.STATE_WIDTH - 1))},
        {"state": np.empty(0)},
        {"request_features": np.zeros(len(REQUEST_FEATURES) - 1, dtype=np.float32)},
        {"match_tokens": np.empty(0)},
        {"output_tokens": 0},
        {"output_tokens": None},
        {"e2e_s": math.nan},
        {"decided_at_s": math.nan},
    ],
    ids=lambda change: " ".join(f"{key}={np.shape(value) or value}" for key, value in change.items()),
)
def test_what_teaches_nothing_is_left_out(change: dict[str, Any], lessons: list[Taught]) -> None:
    record = record_of(lessons[0], 0)
    assert teaches(record)
    assert taught(record) is not None
    assert taught(replace(record, **change)) is None


def test_nothing_is_an_empty_table() -> None:
    outcomes = logged_outcomes([])
    assert len(outcomes) == 0
    assert outcomes.replicas.shape == (0, len(REPLICA_FEATURES))
