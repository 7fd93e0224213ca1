"""LangChain's OpenAI client: only the URL is another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

from tests.serving.backends import Backend, backends
from tests.serving.engine_answers import engine
from tests.serving.harness import Routed, routing, settings_for

QUESTION = [("system", "Be brief."), ("human", "Where to?")]


class A(BaseModel):
    """What the emulated engine answers to a schema."""

    a: int


def weather(city: str) -> str:
    """Tell the weather."""
    return city


@pytest.fixture
async def replica() -> AsyncIterator[Backend]:
    async with backends(engine) as (made,):
        yield made


@pytest.fixture
async def router(replica: Backend) -> AsyncIterator[Routed]:
    async with routing(settings_for([replica])) as made:
        yield made


@pytest.fixture
async def connection(router: Routed) -> AsyncIterator[dict[str, Any]]:
    """What all its clients are made with."""
    async with openai.DefaultAsyncHttpxClient() as http:
        yield {
            "model": "m",
            "base_url": f"{router.url}/v1",
            "api_key": SecretStr("k"),
            "max_retries": 0,
            "http_async_client": http,
        }


async def test_a_chat_and_its_usage(connection: dict[str, Any], replica: Backend) -> None:
    options = {"temperature": 0.2, "default_headers": {"x-session-id": "s1"}}
    answer = await ChatOpenAI(**connection, **options).ainvoke(QUESTION)
    assert answer.content == "sea"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == 12
    sent = orjson.loads(replica.received[0].body)
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["temperature"] == 0.2
    assert replica.received[0].header("x-session-id") == "s1"


async def test_a_stream(connection: dict[str, Any]) -> None:
    pieces = [piece async for piece in ChatOpenAI(**connection, stream_usage=True).astream(QUESTION)]
    whole = sum(pieces[1:], pieces[0])
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == "sea"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 3


@pytest.mark.parametrize("streaming", [False, True])
async def test_tools(connection: dict[str, Any], streaming: bool) -> None:
    answer = await ChatOpenAI(**connection, streaming=streaming).bind_tools([weather]).ainvoke(QUESTION)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Zürich"})


async def test_an_answer_with_a_schema(connection: dict[str, Any], replica: Backend) -> None:
    structured = ChatOpenAI(**connection).with_structured_output(A, method="json_schema")
    assert await structured.ainvoke(QUESTION) == A(a=1)
    assert orjson.loads(replica.received[0].body)["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("streaming", [False, True])
async def test_responses(connection: dict[str, Any], replica: Backend, streaming: bool) -> None:
    answer = await ChatOpenAI(**connection, use_responses_api=True, streaming=streaming).ainvoke(
        QUESTION
    )
    assert answer.text == "sea"
    assert replica.received[0].path == "/v1/responses"


async def test_embeddings(connection: dict[str, Any]) -> None:
    # Without this it sends token numbers of OpenAI's own models.
    embeddings = OpenAIEmbeddings(**connection, check_embedding_ctx_length=False)
    assert await embeddings.aembed_documents(["a", "bcd"]) == [[1.0, 0.5, -1.0], [3.0, 0.5, -1.0]]


async def test_errors_arrive_as_openai_s(connection: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        await ChatOpenAI(**connection).bind(model="other").ainvoke(QUESTION)
