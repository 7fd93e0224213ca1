"""The whole surface, through the official client: only the URL is another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from steersman.predictors import ledger as L
from steersman.serving.surface import SURFACE, Work
from steersman.traces.outcome_log import read_outcomes
from tests.serving.backends import Backend, backends
from tests.serving.engine_answers import CALL, engine
from tests.serving.harness import Routed, chat, routing, settings_for

TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
ASK: Any = [{"role": "user", "content": "Where to?"}]


@pytest.fixture
async def replica() -> AsyncIterator[Backend]:
    async with backends(engine) as (made,):
        yield made


@pytest.fixture
async def router(replica: Backend, tmp_path: Path) -> AsyncIterator[Routed]:
    log = {"directory": str(tmp_path / "log")}
    async with routing(settings_for([replica], outcome_log=log)) as made:
        yield made


@pytest.fixture
async def client(router: Routed) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as made:
        yield made


async def test_choices_seeds_stops_and_log_probabilities(
    client: openai.AsyncOpenAI, replica: Backend
) -> None:
    answer = await client.chat.completions.create(
        model="m", messages=ASK, n=3, seed=7, stop=["x", "y"], logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].logprobs is not None
    sent = orjson.loads(replica.received[0].body)
    assert (sent["seed"], sent["stop"], sent["top_logprobs"]) == (7, ["x", "y"], 2)


async def test_tools(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=ASK, tools=[TOOL])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.model_dump(exclude_none=True) == CALL


async def test_tools_in_a_stream(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="m", messages=ASK, tools=[TOOL]) as stream:
        snapshot = await stream.get_final_completion()
    (call,) = snapshot.choices[0].message.tool_calls or []
    assert call.function.arguments == CALL["function"]["arguments"]  # type: ignore[index]


async def test_several_choices_in_a_stream_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=ASK, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts = {
        i: "".join(
            c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == i
        )
        for i in (0, 1)
    }
    assert texts == {0: "sea", 1: "sea"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_images_and_schemas(client: openai.AsyncOpenAI, replica: Backend) -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    ask: Any = [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]
    seen = await client.chat.completions.create(model="m", messages=ask)
    assert seen.choices[0].message.content == "an image"
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    made = await client.chat.completions.create(model="m", messages=ASK, response_format=schema)
    assert made.choices[0].message.content == '{"a": 1}'
    assert orjson.loads(replica.received[1].body)["response_format"] == schema


async def test_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="m", prompt=["a", "b"])
    assert [choice.text for choice in answer.choices] == ["a!", "b!"]


async def test_responses(client: openai.AsyncOpenAI, router: Routed) -> None:
    answer = await client.responses.create(model="m", input="Where to?", instructions="Be brief.")
    assert answer.output_text == "sea"
    assert await router.metric('steersman_output_tokens_total{model="m"}') == 3.0
    assert await router.metric('steersman_input_tokens_total{model="m"}') == 9.0


async def test_responses_in_a_stream(client: openai.AsyncOpenAI, router: Routed) -> None:
    stream = await client.responses.create(model="m", input=ASK, stream=True)
    told = [event async for event in stream]
    assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == "sea"
    assert told[-1].type == "response.completed"
    assert await router.metric('steersman_requests_total{model="m",status="ok"}') == 1.0
    assert await router.metric('steersman_output_tokens_total{model="m"}') == 3.0


async def test_embeddings(client: openai.AsyncOpenAI, router: Routed) -> None:
    made = await client.embeddings.create(model="m", input=["ab", "abc"])
    assert [item.embedding for item in made.data] == [[2.0, 0.5, -1.0], [3.0, 0.5, -1.0]]
    assert made.usage.prompt_tokens == 4
    assert await router.metric('steersman_input_tokens_total{model="m"}') == 4.0
    assert await router.metric('steersman_output_tokens_total{model="m"}') == 0.0


async def test_the_synchronous_client(router: Routed) -> None:
    def ask() -> tuple[str, str, list[float], str]:
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as made:
            whole = made.chat.completions.create(model="m", messages=ASK)
            deltas = made.chat.completions.create(model="m", messages=ASK, stream=True)
            streamed = "".join(d.choices[0].delta.content or "" for d in deltas)
            vector = made.embeddings.create(model="m", input="ab").data[0].embedding
            response = made.responses.create(model="m", input="x").output_text
            return whole.choices[0].message.content or "", streamed, vector, response

    assert await asyncio.to_thread(ask) == ("sea", "sea", [2.0, 0.5, -1.0], "sea")


async def test_errors_raise_what_the_client_knows(client: openai.AsyncOpenAI, router: Routed) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'x'") as missing:
        await client.chat.completions.create(model="x", messages=ASK)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
        await client.images.generate(prompt="a cat")
    with pytest.raises(openai.BadRequestError, match="x-session-id"):
        await client.completions.create(model="m", prompt="", extra_headers={"x-session-id": "a b"})


async def test_the_answer_says_who_decided_and_how_long_it_waited(router: Routed) -> None:
    _, _, headers = await router.post()
    assert headers["x-steersman-decision-id"].startswith("req-")
    assert (headers["x-steersman-replica"], headers["x-steersman-policy"]) == ("b0", "round-robin")
    assert 0.0 <= float(headers["x-steersman-queue-ms"]) < 60_000.0


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "results"),
        ("/v2/rerank", {"query": "q", "documents": ["a"]}, "results"),
        ("/rerank", {"query": "q", "documents": [{"text": "a"}]}, "results"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, "data"),
        ("/score", {"text_1": "a", "text_2": "b"}, "data"),
        ("/tokenize", {"prompt": "hello"}, "tokens"),
        ("/detokenize", {"tokens": [1, 2]}, "prompt"),
    ],
)
async def test_paths_that_generate_nothing(
    router: Routed, replica: Backend, path: str, body: dict[str, Any], field: str, tmp_path: Path
) -> None:
    sent = orjson.dumps({"model": "m"} | body)
    status, got, headers = await router.post(sent, path=path)
    assert (status, replica.received[0].body) == (200, sent)
    assert field in orjson.loads(got)
    assert headers["x-steersman-replica"] == "b0"
    row = router.parts.fleet.state[0]
    assert not row[L.INFLIGHT : L.SINCE_SCRAPE].any(), "the account is balanced"
    assert row[L.MEAN_TTFT_S] == row[L.LOG_BIAS_TPOT] == 0.0
    assert bool(row[L.MEAN_E2E_S] == 0.0) is path.endswith("tokenize")
    # Nothing is learned of how long answers are, and the log of generations does not hold it.
    assert len(router.parts.recorder._past.tenants) == 0
    await router.post(chat())
    router.parts.log.flush()  # type: ignore[union-attr]
    assert len(list(read_outcomes(tmp_path / "log"))) == 1


async def test_what_an_engine_does_not_have_is_its_own_answer(router: Routed) -> None:
    status, got, _ = await router.post({"model": "m", "input": "x"}, path="/classify")
    assert (status, got) == (404, b'{"detail":"Not Found"}')


def test_the_table_names_each_path_once() -> None:
    assert len({api.path for api in SURFACE}) == len(SURFACE)
    assert {api.work for api in SURFACE} == set(Work)
