from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from steersman.env.emulator.app import create_backend
from steersman.env.emulator.settings import EmulatorSettings
from steersman.env.engine_metrics import EngineMetrics, parse_metrics
from steersman.traces.errors import BackendError, ConfigError
from steersman.traces.headers import EMULATED_INPUT_TOKENS, EMULATED_OUTPUT_TOKENS
from tests.support.emulated import emulated

FAST = 20.0
LONG_PROMPT = "steady as she goes " * 100
HEALED: dict[str, Any] = {}


class Client:
    """A few shorthands over a plain HTTP client."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def chat(
        self, *, output: int | None = 4, tokens: int | None = None, **body: Any
    ) -> dict[str, Any]:
        status, answer = await self.post("/v1/chat/completions", _body(body), _told(output, tokens))
        assert status == 200, answer
        return answer

    async def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.http.post(path, data=data, headers=headers) as response:
            return response.status, orjson.loads(await response.read())

    async def stream(self, *, output: int = 4, **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed chat answer; raises if it is cut."""
        return [event async for event in self.events(output=output, **body)]

    async def events(self, *, output: int = 4, **body: Any) -> AsyncGenerator[dict[str, Any]]:
        request = self.http.post(
            "/v1/chat/completions",
            data=orjson.dumps(_body(body) | {"stream": True}),
            headers=_told(output),
        )
        async with request as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield orjson.loads(line[6:])

    async def faults(self, **faults: Any) -> None:
        status, answer = await self.post("/emulator/faults", faults)
        assert status == 200, answer

    async def metrics(self) -> EngineMetrics:
        return parse_metrics((await self.page()).encode())

    async def page(self) -> str:
        async with self.http.get("/metrics") as response:
            assert response.content_type == "text/plain"
            return await response.text()

    async def health(self) -> int:
        async with self.http.get("/health") as response:
            return response.status


def _body(extra: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}]} | extra


def _told(output: int | None, tokens: int | None = None) -> dict[str, str]:
    told = {EMULATED_OUTPUT_TOKENS: output, EMULATED_INPUT_TOKENS: tokens}
    return {name: str(value) for name, value in told.items() if value is not None}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with emulated(speed=FAST, seed=1) as url, aiohttp.ClientSession(url) as http:
        yield Client(http)


async def test_models_and_health(client: Client) -> None:
    async with client.http.get("/v1/models") as response:
        models = await response.json()
    assert [model["id"] for model in models["data"]] == ["llama-3.1-8b"]
    assert models["data"][0]["max_model_len"] > 10_000
    assert await client.health() == 200


async def test_a_whole_chat_answer(client: Client) -> None:
    answer = await client.chat(output=5, tokens=123)
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["prompt_tokens"] == 123
    assert answer["usage"]["completion_tokens"] == 5
    (choice,) = answer["choices"]
    assert len(choice["message"]["content"].split()) == 5
    assert choice["finish_reason"] == "stop"


async def test_a_text_completion(client: Client) -> None:
    status, answer = await client.post(
        "/v1/completions", {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}
    )
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_stream_has_one_event_per_token_and_usage_on_request(client: Client) -> None:
    role, *tokens, usage = await client.stream(output=6, stream_options={"include_usage": True})
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert len(tokens) == 6
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 5 + ["stop"]
    assert usage["usage"]["completion_tokens"] == 6
    assert len(await client.stream(output=6)) == 7


async def test_the_prompt_is_estimated_from_its_text(client: Client) -> None:
    answer = await client.chat(messages=[{"role": "user", "content": LONG_PROMPT}])
    assert answer["usage"]["prompt_tokens"] == pytest.approx(len(LONG_PROMPT) / 4, abs=8)


async def test_the_prefix_cache_is_real(client: Client) -> None:
    messages = [{"role": "user", "content": LONG_PROMPT}]
    first = await client.chat(messages=messages)
    other = await client.chat(messages=[{"role": "user", "content": "Other! " + LONG_PROMPT}])
    again = await client.chat(messages=[*messages, {"role": "user", "content": "and now?"}])
    cached = [
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, other, again)
    ]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0.8 * len(LONG_PROMPT) / 4
    assert (await client.metrics()).prefix_hits == cached[2]


async def test_lengths_are_drawn_by_the_seed_where_nobody_says(client: Client) -> None:
    drawn = [
        (await client.chat(output=None, max_tokens=64))["usage"]["completion_tokens"] for _ in range(3)
    ]
    async with emulated(speed=FAST, seed=1) as url, aiohttp.ClientSession(url) as http:
        same = Client(http)
        again = [
            (await same.chat(output=None, max_tokens=64))["usage"]["completion_tokens"] for _ in range(3)
        ]
    assert drawn == again
    assert all(1 <= tokens <= 64 for tokens in drawn)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", b"{", 400, "not valid JSON"),
        ("/v1/chat/completions", {}, 400, "messages"),
        ("/v1/chat/completions", {"model": "gpt-5", "messages": [{}]}, 404, "`gpt-5` does not exist"),
        ("/v1/chat/completions", _body({"max_tokens": 10**7}), 400, "maximum context length"),
        ("/v1/completions", {"prompt": {}}, 400, "prompt"),
        ("/v1/elsewhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)
async def test_errors_have_the_shape_of_openai(
    client: Client, path: str, body: Any, status: int, message: str
) -> None:
    got, answer = await client.post(path, body)
    assert got == status
    assert message in answer["error"]["message"]
    assert answer["error"]["code"] == status


async def test_metrics_count_what_was_served(client: Client) -> None:
    await asyncio.gather(*(client.chat(output=10, tokens=50) for _ in range(3)))
    page = await client.page()
    labels = '{engine="0",model_name="llama-3.1-8b"}'
    for line in (
        f"vllm:prompt_tokens_total{labels} 150.0",
        f"vllm:generation_tokens_total{labels} 30.0",
        f"vllm:time_to_first_token_seconds_count{labels} 3.0",
        f"vllm:inter_token_latency_seconds_count{labels} 27.0",
        f"vllm:e2e_request_latency_seconds_count{labels} 3.0",
        f"vllm:request_queue_time_seconds_count{labels} 3.0",
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="llama-3.1-8b"} 3.0',
    ):
        assert line in page.splitlines()


async def test_running_requests_are_on_the_page_while_they_run(client: Client) -> None:
    answers = [asyncio.create_task(client.chat(output=400, tokens=1000)) for _ in range(4)]
    most = EngineMetrics("", 0, 0, 0)
    while not all(answer.done() for answer in answers):
        now = await client.metrics()
        most = max(most, now, key=lambda seen: seen.running)
        await asyncio.sleep(0.01)
    assert most.running == 4
    assert most.kv_usage > 0
    assert (await client.metrics()).running == 0


async def test_a_client_that_leaves_is_cancelled_in_the_engine(client: Client) -> None:
    events = client.events(output=100_000, max_tokens=100_000)
    await anext(events)
    assert (await client.metrics()).running == 1
    await events.aclose()
    whole = asyncio.create_task(client.chat(output=100_000))
    await asyncio.sleep(0.1)
    whole.cancel()
    await asyncio.gather(whole, return_exceptions=True)
    deadline = time.monotonic() + 5.0
    while (await client.metrics()).running and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert (await client.metrics()).running == 0
    assert 'finished_reason="abort",model_name="llama-3.1-8b"} 2.0' in await client.page()


async def test_fault_fail_rate(client: Client) -> None:
    await client.faults(fail_rate=1.0)
    status, answer = await client.post("/v1/chat/completions", _body({}))
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    await client.faults(**HEALED)
    await client.chat()


async def test_fault_break_after_tokens(client: Client) -> None:
    await client.faults(break_after_tokens=3)
    url = client.http._base_url
    assert url is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = orjson.dumps(_body({"stream": True}))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}{EMULATED_OUTPUT_TOKENS}: 20\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), 10.0)
    writer.close()
    assert answer.count(b"data: ") == 4  # the role and three tokens
    assert not answer.endswith(b"0\r\n\r\n")  # not the end of a chunked body
    assert (await client.metrics()).running == 0


async def test_fault_freeze_holds_everything_and_then_goes_on(client: Client) -> None:
    running = asyncio.create_task(client.stream(output=2000))
    await asyncio.sleep(0.1)
    await client.faults(freeze_s=0.5)
    begun = time.monotonic()
    probe = asyncio.create_task(client.health())
    fresh = asyncio.create_task(client.chat(output=2))
    await asyncio.sleep(0.2)
    assert not probe.done()
    assert not fresh.done()
    assert await probe == 200
    await fresh
    assert time.monotonic() - begun >= 0.45
    assert len(await running) == 2001


async def test_fault_slowdown(client: Client) -> None:
    async def took_s() -> float:
        begun = time.monotonic()
        await client.chat(output=400)
        return time.monotonic() - begun

    healthy_s = await took_s()
    await client.faults(slowdown=4.0)
    assert await took_s() > 2.5 * healthy_s


async def test_fault_unhealthy(client: Client) -> None:
    await client.faults(unhealthy=True)
    assert await client.health() == 503
    await client.chat()


async def test_fault_rubbish(client: Client) -> None:
    await client.faults(rubbish_rate=1.0)
    seen = set()
    for _ in range(20):
        async with client.http.post("/v1/chat/completions", json=_body({})) as answer:
            assert answer.status == 200
            assert b'"choices"' not in await answer.read()
            seen.add(answer.content_type)
    assert seen == {"text/html", "application/json", "text/event-stream"}


async def test_fault_metrics_that_lie(client: Client) -> None:
    running = asyncio.create_task(client.stream(output=2000))
    await asyncio.sleep(0.1)
    await client.faults(metrics="idle")
    assert ((await client.metrics()).running, (await client.metrics()).kv_usage) == (0, 0.0)
    await client.faults(metrics="rubbish")
    async with client.http.get("/metrics") as page:
        with pytest.raises(BackendError):
            parse_metrics(await page.read())
    await client.faults(**HEALED)
    assert (await client.metrics()).running == 1
    running.cancel()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"fail_rat": 0.1}, "did you mean 'fail_rate'"),
        ({"fail_rate": 2}, "fail_rate"),
        (b"{", "not valid JSON"),
    ],
)
async def test_faults_are_validated(client: Client, body: Any, message: str) -> None:
    status, answer = await client.post("/emulator/faults", body)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_it_says_what_it_pretends_to_be(client: Client) -> None:
    await client.faults(slowdown=2.0)
    async with client.http.get("/emulator") as response:
        described = await response.json()
    assert described["profile"] == "a100-llama-3.1-8b"
    assert described["faults"]["slowdown"] == 2.0


async def test_tokens_come_in_groups_where_an_interval_is_set() -> None:
    async with emulated(speed=FAST, stream_interval=5) as url, aiohttp.ClientSession(url) as http:
        events = await Client(http).stream(output=23)
    assert len(events) == 24


def test_an_unknown_profile_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'a100-llama-3\.1-8b'"):
        create_backend(EmulatorSettings(profile="a100-lama-3.1-8b"))
