"""What the outcome log holds, and what it never holds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path

import numpy as np
import pytest

from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.ledger import STATE_WIDTH
from steersman.predictors.wording import word_buckets
from steersman.traces.outcome_log import OutcomeRecord, read_outcomes, segments
from steersman.traces.readers import load_trace
from steersman.traces.schema import Priority, Status
from tests.serving.backends import Received, completion, events, reset, silent, stream, whole
from tests.serving.harness import Routed, chat, eventually, rig, routing, settings_for

SECRET_TEXT = "the launch code is 0000"


def read(directory: Path) -> list[OutcomeRecord]:
    return list(read_outcomes(directory))


async def test_a_record_tells_everything_but_the_text(tmp_path: Path) -> None:
    text = b"".join(events(6))
    async with rig(stream([text]), stream([text]), outcome_log={"directory": str(tmp_path)}) as (
        router,
        _,
    ):
        headers = {
            "x-session-id": "s-1",
            "x-steersman-tenant": "team",
            "x-steersman-priority": "batch",
            "x-llm-d-slo-ttft-ms": "250",
        }
        body = chat(SECRET_TEXT * 20, stream=True, max_tokens=50)
        _, _, told = await router.post(body, headers=headers)
    (record,) = read(tmp_path)
    assert record.request_id == told["x-steersman-decision-id"]
    assert (record.model, record.tenant, record.session_id) == ("m", "team", "s-1")
    assert (record.priority, record.max_tokens, record.stream) == (Priority.BATCH, 50, True)
    assert abs(record.arrival_unix_s - time.time()) < 60
    assert record.replica_ids == ("b0", "b1")
    assert record.state.shape == (2, STATE_WIDTH)
    assert record.mask.tolist() == [True, True]
    assert record.replica_id == record.served_by == told["x-steersman-replica"]
    assert (record.policy, record.propensity) == ("round-robin", 1.0)
    assert record.ttft_slo_s == pytest.approx(0.25)
    assert 1 <= record.output_p50 <= record.output_p90
    assert 0 < record.ttft_p50_s <= record.ttft_p90_s
    assert 0 < record.tpot_p50_s <= record.tpot_p90_s
    assert record.estimated_ttft_s > 0
    assert record.status is Status.OK
    assert (record.output_tokens, record.cached_tokens) == (6, 4)
    assert 0 < record.ttft_s <= record.e2e_s
    assert record.error == ""
    assert b"launch code" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


async def test_every_way_to_end_is_logged(tmp_path: Path) -> None:
    sections = {
        "outcome_log": {"directory": str(tmp_path)},
        "health": {"failures": 100},
        "retries": {"attempts": 1},
    }
    async with rig(stream(events(5)[:3], then="abort"), **sections) as (router, fleet):
        await router.post(chat(stream=True))
        fleet[0].answer = whole(b"{}", status=400)
        await router.post()
        fleet[0].answer = reset
        await router.post()
        fleet[0].answer = silent
        asking = asyncio.create_task(router.post())
        await eventually(lambda: len(fleet[0].received) == 4)
        asking.cancel()
        await eventually(lambda: fleet[0].hung_up == 1)
        fleet[0].answer = whole(completion())
        await router.post()
        for _ in range(100):
            router.parts.monitor.failed(router.parts.fleet.replicas[0], "test")
        await router.post()
    records = read(tmp_path)
    assert [(record.status, record.error) for record in records] == [
        (Status.FAILED, "stream_broken"),
        (Status.REJECTED, "status_400"),
        (Status.FAILED, "connection"),
        (Status.CANCELLED, "client_gone"),
        (Status.OK, ""),
        (Status.REJECTED, "no_healthy_replica"),
    ]
    assert math.isnan(records[1].e2e_s)
    assert records[-1].choice == -1
    assert records[4].output_tokens == 3


async def test_a_retry_is_one_record_and_one_of_each_attempt_before(tmp_path: Path) -> None:
    async with rig(reset, whole(completion()), outcome_log={"directory": str(tmp_path)}) as (
        router,
        fleet,
    ):
        for _ in range(2):
            await router.post()
        retried = len(fleet[0].received)
    records = read(tmp_path)
    assert len(records) == 2
    assert sum(record.retries for record in records) == retried >= 1
    assert {record.served_by for record in records} == {"b1"}
    assert all(record.mask.tolist() == [False, True] for record in records if record.retries)
    every = list(read_outcomes(tmp_path, attempts=True))
    earlier = [record for record in every if record.superseded]
    assert len(every) == len(records) + retried
    assert {record.request_id for record in earlier} <= {record.request_id for record in records}
    for record in earlier:
        assert (record.status, record.error, record.served_by) == (Status.FAILED, "connection", "b0")
        assert (record.propensity, record.retries, record.output_tokens) == (1.0, 0, 0)
        assert record.mask.tolist() == [True, True]
        assert math.isnan(record.ttft_s)


async def test_of_two_attempts_at_once_both_decisions_are_kept(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def late(request: Received, writer: asyncio.StreamWriter) -> None:
        await never.wait()

    hedging = {"enabled": True, "least_wait_s": 0.05}
    sections = {"outcome_log": {"directory": str(tmp_path)}, "hedging": hedging}
    async with rig(late, stream(events(3)), **sections) as (router, _):
        await router.post(chat(stream=True))
    first, last = read_outcomes(tmp_path, attempts=True)
    assert (first.replica_id, first.status, first.error) == ("b0", Status.CANCELLED, "overtaken")
    assert (last.replica_id, last.status) == ("b1", Status.OK)
    assert first.superseded
    assert read(tmp_path)[0].served_by == "b1"


async def test_the_log_is_a_trace(tmp_path: Path) -> None:
    async with rig(whole(completion()), outcome_log={"directory": str(tmp_path)}) as (router, _):
        for _ in range(3):
            await router.post()
        assert 0.0 < await router.metric("steersman_outcome_log_cpu_seconds_total") < 1.0
    (segment,) = segments(tmp_path)
    trace = load_trace(segment)
    assert len(trace) == 3
    assert np.all(trace.output_tokens == 3)


async def test_a_log_that_cannot_be_written_does_not_stop_the_traffic(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    sections = {"outcome_log": {"directory": str(directory), "flush_interval_s": 0.01}}
    async with rig(whole(completion()), **sections) as (router, _):
        directory.rmdir()
        directory.write_text("in the way")
        for _ in range(5):
            assert (await router.post())[0] == 200
        await eventually(lambda: _errors(router))
        assert (await router.post())[0] == 200
        directory.unlink()


async def _errors(router: Routed) -> bool:
    return await router.metric("steersman_outcome_log_errors_total") > 0.0


async def test_secrets_are_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "sk-backend-secret")
    caplog.set_level(logging.DEBUG)
    seen: list[str | None] = []
    async with rig(whole(completion()), reset) as (_, fleet):
        listed = [
            {"id": b.name, "url": b.url, "models": ["m"], "api_key_env": "BACKEND_KEY"} for b in fleet
        ]
        settings = settings_for(fleet, backends=listed, outcome_log={"directory": str(tmp_path)})
        async with routing(settings) as router:
            headers = {"authorization": "Bearer sk-client-secret"}
            for _ in range(3):
                status, got, told = await router.post(chat(SECRET_TEXT), headers=headers)
                assert status == 200
            seen = [request.header("authorization") for request in fleet[0].received]
            _, page = await router.get("/metrics")
            everything = [got.decode(), page.decode(), str(told), caplog.text, repr(settings)]
            everything += [repr(replica) for replica in router.parts.fleet.replicas]
    everything += [path.read_text() for path in tmp_path.iterdir()]
    assert set(seen) == {"Bearer sk-backend-secret"}
    for text in everything:
        assert "sk-backend-secret" not in text
        assert "sk-client-secret" not in text
        assert SECRET_TEXT not in text


async def test_answers_teach_what_words_sessions_and_tools_promise(tmp_path: Path) -> None:
    called = completion().replace(b'"choices"', b'"x":{"finish_reason":"tool_calls"},"choices"')
    log = {"directory": str(tmp_path)}
    async with rig(whole(called), outcome_log=log, retries={"attempts": 1}) as (router, fleet):
        asked = chat("Explain the tides", tools=[{"type": "function"}])
        for _ in range(3):
            await router.post(asked, headers={"x-session-id": "s-1"})
        fleet[0].answer = whole(
            completion().replace(b'"completion_tokens":3', b'"completion_tokens":90')
        )
        for _ in range(2):
            await router.post(chat("Write an essay"))
        parts = router.parts
    records = read(tmp_path)
    assert [record.called_tool for record in records] == [True, True, True, False, False]
    assert records[0].wording == 0.0
    assert records[-1].wording > 0.0
    assert records[0].question_bytes == len("Explain the tides")
    past = dict(zip(LENGTH_FEATURES, records[2].request_features.tolist(), strict=False))
    assert past["session_turn"] == 3
    assert past["session_output_tokens"] == 3
    assert past["tenant_output_p50"] == 3
    assert past["tool_call_likelihood"] == pytest.approx(4 / 6)
    assert parts.wording.score(word_buckets(["essay"])) > 0.0


async def test_text_is_logged_only_where_that_is_asked_for_and_shown_nowhere_else(
    tmp_path: Path,
) -> None:
    log = {"directory": str(tmp_path), "prompt_text": True, "prompt_text_bytes": 60}
    async with rig(whole(completion()), outcome_log=log) as (router, _):
        await router.post(chat(SECRET_TEXT))
        _, page = await router.get("/metrics")
    (record,) = read(tmp_path)
    assert record.prompt_text is not None
    assert len(record.prompt_text) == 60
    assert record.prompt_text.startswith('{"')
    assert SECRET_TEXT.encode() not in page


async def test_what_was_decided_before_the_policy_is_logged(tmp_path: Path) -> None:
    sections = {"outcome_log": {"directory": str(tmp_path)}, "affinity": {"keys": ["session"]}}
    async with rig(whole(completion()), whole(completion()), **sections) as (router, _):
        for _ in range(2):
            await router.post(headers={"x-session-id": "s-1"})
        await router.post()
    records = read(tmp_path)
    assert [record.affinity for record in records] == ["new", "stayed", ""]
    assert [record.policy for record in records][1] == "affinity"
    assert records[1].propensity == 1.0
    assert {(record.held_s, record.asked_model, record.explored) for record in records} == {
        (0.0, "", False)
    }
