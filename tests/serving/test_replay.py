from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from steersman.serving.replay import ReplaySettings, replay, service_levels
from steersman.traces.errors import BackendError, ConfigError
from steersman.traces.schema import Priority, Request, Status
from steersman.traces.settings import parse_settings
from steersman.traces.trace import Trace
from tests.support.processes import free_port
from tests.support.scripted_server import DONE, ROLE, TOKEN, refused, scripted_server, streamed

ANSWER = (ROLE + TOKEN, TOKEN, TOKEN + DONE)


def trace(requests: Iterable[Request]) -> Trace:
    return Trace.from_requests("t", requests)


def plain(count: int, gap_s: float = 0.0, **changes: Any) -> Trace:
    base = Request("", 0.0, 40, output_tokens=3)
    return trace(replace(base, request_id=f"r{i}", arrival_s=i * gap_s, **changes) for i in range(count))


def settings(url: str, **changes: Any) -> ReplaySettings:
    return parse_settings({"url": url, **changes}, ReplaySettings, source="test")


async def test_it_measures_a_streamed_answer() -> None:
    headers = {"X-Steersman-Replica": "a100-0", "X-Steersman-Fallback": "stale"}
    async with scripted_server(streamed(*ANSWER, headers=headers, gap_s=0.05)) as server:
        result = await replay(plain(1), settings(server.url))
    assert result.status == (Status.OK,)
    assert result.http_status.tolist() == [200]
    assert result.output_tokens.tolist() == [3]
    assert result.replica == ("a100-0",)
    assert result.fallback == ("stale",)
    assert result.model == "m"
    ttft_s, tpot_s, e2e_s = result.ttft_s[0], result.tpot_s[0], result.e2e_s[0]
    assert 0.0 < ttft_s < e2e_s
    assert tpot_s == pytest.approx((e2e_s - ttft_s) / 2)
    assert e2e_s >= 0.1


async def test_it_sends_what_the_trace_tells_and_hides_the_length() -> None:
    request = Request(
        "r7",
        0.0,
        50,
        output_tokens=9,
        max_tokens=400,
        tenant="acme",
        session_id="s1",
        priority=Priority.BATCH,
    )
    async with scripted_server(streamed(*ANSWER)) as server:
        await replay(trace([request]), settings(server.url, api_key="secret"))
    (body,), (headers,) = server.bodies, server.headers
    assert body["model"] == "m"
    assert body["max_tokens"] == 400
    assert body["stream"] is True
    assert "ignore_eos" not in body
    assert len(body["messages"][0]["content"]) == 200
    assert headers["x-emulated-input-tokens"] == "50"
    assert headers["x-emulated-output-tokens"] == "9"
    assert headers["x-steersman-tenant"] == "acme"
    assert headers["x-steersman-priority"] == "2"
    assert headers["x-session-id"] == "s1"
    assert headers["x-request-id"] == "r7"
    assert headers["authorization"] == "Bearer secret"


async def test_names_that_are_no_header_values_stay_at_home() -> None:
    request = Request("two words", 0.0, 5, output_tokens=1, tenant="line\nbreak")
    async with scripted_server(streamed(*ANSWER)) as server:
        result = await replay(trace([request]), settings(server.url))
    assert result.status == (Status.OK,)
    assert not {"x-request-id", "x-steersman-tenant"} & set(server.headers[0])


async def test_every_replay_writes_new_prompts_unless_it_is_told_a_salt() -> None:
    async with scripted_server(streamed(*ANSWER)) as server:
        for salt in ("", "", "s", "s"):
            await replay(plain(1), settings(server.url, salt=salt))
    texts = [body["messages"][0]["content"] for body in server.bodies]
    assert texts[0] != texts[1]
    assert texts[2] == texts[3]


async def test_forced_lengths_are_for_real_engines() -> None:
    async with scripted_server(streamed(*ANSWER)) as server:
        await replay(plain(1), settings(server.url, force_lengths=True))
    assert server.bodies[0]["max_tokens"] == 3
    assert server.bodies[0]["ignore_eos"] is True


async def test_answers_that_are_not_streamed() -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [], "usage": {"completion_tokens": 5}})

    async with scripted_server(answer) as server:
        result = await replay(plain(1, stream=False), settings(server.url))
    assert result.output_tokens.tolist() == [5]
    assert result.ttft_s[0] == result.e2e_s[0]
    assert np.isnan(result.tpot_s[0])
    assert result.slo_met.tolist() == [True]
    assert "stream_options" not in server.bodies[0]


async def test_arrivals_are_open_loop_and_speed_compresses_them() -> None:
    async with scripted_server(streamed(*ANSWER, gap_s=0.1)) as server:
        result = await replay(plain(5, gap_s=1.0), settings(server.url, speed=50.0))
    assert result.scheduled_s == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08], abs=1e-6)
    assert server.most_in_flight == 5  # nobody waited for an answer
    assert result.wall_s < 2.0
    assert (result.lateness_s >= 0).all()


async def test_a_slice_of_a_trace_starts_at_once() -> None:
    late = trace([Request("r", 1000.0, 5, output_tokens=1)])
    async with scripted_server(streamed(*ANSWER)) as server:
        result = await replay(late, settings(server.url))
    assert result.wall_s < 5.0


async def test_later_turns_wait_for_the_turn_before_and_think() -> None:
    turns = trace(
        [
            Request("a", 0.0, 20, output_tokens=3, session_id="s"),
            Request("b", 0.1, 30, output_tokens=3, session_id="s", parent_id="a", think_time_s=2.0),
            Request("c", 0.2, 40, output_tokens=3, session_id="s", parent_id="b", think_time_s=1.0),
        ]
    )
    async with scripted_server(streamed(*ANSWER, gap_s=0.05)) as server:
        result = await replay(turns, settings(server.url, speed=10.0))
    assert server.most_in_flight == 1
    gaps = np.diff(result.scheduled_s) - result.e2e_s[:-1]
    assert gaps == pytest.approx([0.2, 0.1], abs=0.08)
    texts = [body["messages"][0]["content"] for body in server.bodies]
    assert texts[1].startswith(texts[0])


async def test_a_session_goes_on_after_a_failed_turn() -> None:
    turns = trace(
        [
            Request("a", 0.0, 20, output_tokens=3, session_id="s"),
            Request("b", 0.1, 30, output_tokens=3, session_id="s", parent_id="a"),
        ]
    )
    async with scripted_server(refused(500)) as server:
        result = await replay(turns, settings(server.url))
    assert result.status == (Status.FAILED, Status.FAILED)


async def test_connections_are_bounded_and_the_client_says_that_it_was_late() -> None:
    async with scripted_server(streamed(*ANSWER, gap_s=0.1)) as server:
        result = await replay(plain(6), settings(server.url, concurrency=2))
    assert server.most_in_flight == 2
    assert result.lateness_s.max() > 0.3
    assert result.summary()["client_kept_up"] is False


@pytest.mark.parametrize(
    ("http_status", "status"),
    [(400, Status.REJECTED), (429, Status.REJECTED), (503, Status.REJECTED), (500, Status.FAILED)],
)
async def test_refusals_and_failures_are_told_apart(http_status: int, status: Status) -> None:
    async with scripted_server(refused(http_status)) as server:
        result = await replay(plain(1), settings(server.url))
    assert result.status == (status,)
    assert result.http_status.tolist() == [http_status]
    assert result.error == (f"{http_status}: no",)
    assert not result.began[0]


async def test_a_connection_cut_before_and_after_the_first_token() -> None:
    async with scripted_server(streamed(ROLE, gap_s=0.02, cut=True)) as server:
        before = await replay(plain(1), settings(server.url))
    async with scripted_server(streamed(ROLE + TOKEN, gap_s=0.02, cut=True)) as server:
        after = await replay(plain(1), settings(server.url))
    assert before.status == after.status == (Status.FAILED,)
    assert (before.began.tolist(), after.began.tolist()) == ([False], [True])
    assert before.summary()["failed_before_first_token"] == 1
    assert after.summary()["failed_before_first_token"] == 0
    assert not np.isnan(after.ttft_s[0])
    assert np.isnan(after.e2e_s[0])


async def test_a_stream_without_an_end_or_with_an_error_event_failed() -> None:
    async with scripted_server(streamed(ROLE + TOKEN)) as server:
        silent = await replay(plain(1), settings(server.url))
    died = b'data: {"error":{"message":"engine died"}}\n\n'
    async with scripted_server(streamed(ROLE + TOKEN, died + DONE)) as server:
        told = await replay(plain(1), settings(server.url))
    assert silent.error == ("the stream broke off",)
    assert told.error == ("engine died",)
    assert told.status == (Status.FAILED,)


async def test_an_answer_that_never_comes_times_out() -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    async with scripted_server(answer) as server:
        result = await replay(plain(1), settings(server.url, timeout_s=0.2))
    assert result.status == (Status.FAILED,)
    assert result.error[0]


async def test_objectives_are_judged_per_request() -> None:
    slo = np.array([[10.0, 10.0], [1e-6, 10.0], [10.0, 1e-6]])
    async with scripted_server(streamed(*ANSWER, gap_s=0.01)) as server:
        result = await replay(plain(3), settings(server.url), slo=slo)
    assert result.slo_met.tolist() == [True, False, False]
    assert result.summary()["slo_attainment"] == pytest.approx(1 / 3)


async def test_progress_is_told_at_the_start_and_after_every_request() -> None:
    told: list[tuple[int, int]] = []
    async with scripted_server(refused(500)) as server:
        await replay(plain(3), settings(server.url), on_progress=lambda n, bad: told.append((n, bad)))
    assert told == [(0, 0), (1, 1), (2, 2), (3, 3)]


async def test_an_endpoint_that_is_not_there_is_one_clear_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(BackendError, match=rf"{url}/v1/models: cannot be reached") as caught:
        await replay(plain(1), settings(url))
    assert "\n" not in str(caught.value)


async def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    async with scripted_server(refused(404), models=("big", "small")) as server:
        with pytest.raises(BackendError, match="no model 'huge'; it lists: big, small"):
            await replay(plain(1), settings(server.url, model="huge"))
        assert (await replay(plain(1), settings(server.url, model="small"))).model == "small"


async def test_something_else_than_an_openai_endpoint() -> None:
    async with scripted_server(refused(404), models=()) as server:
        with pytest.raises(BackendError, match="lists no model"):
            await replay(plain(1), settings(server.url))


@pytest.mark.parametrize("url", ["http://host:1/v1", "http://host:1/v1/", "http://host:1/"])
def test_urls_are_given_with_or_without_their_version(url: str) -> None:
    assert settings(url).url == "http://host:1"


def test_a_url_needs_a_scheme() -> None:
    with pytest.raises(ConfigError, match="must begin with http"):
        settings("127.0.0.1:8000")


def test_service_levels_follow_the_prompt_and_the_hardware() -> None:
    from steersman.env.profiles import load_profile

    small, large = load_profile("a100-llama-3.1-8b"), load_profile("a100-tp4-llama-3.1-70b")
    requests = trace(
        Request(f"r{i}", i, tokens, output_tokens=1) for i, tokens in enumerate((10, 60_000))
    )
    levels = service_levels(requests, [small])
    assert levels.shape == (2, 2)
    assert levels[0].tolist() == [1.0, 0.05]
    assert levels[1, 0] > 1.0
    assert service_levels(requests, [large])[0, 1] == 0.1
