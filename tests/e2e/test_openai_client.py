"""The official client, pointed at the router by its URL alone."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.conftest import MODEL, Backends, Router


@pytest.fixture(scope="module")
def client(router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat(client: openai.OpenAI, backends: Backends) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where to?"}],
        max_tokens=12,
        temperature=0.2,
        extra_body={"ignore_eos": True},
    )
    answer = raw.parse()
    assert raw.headers["x-steersman-replica"] in backends.ids
    assert answer.choices[0].message.role == "assistant"
    assert len((answer.choices[0].message.content or "").split()) == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens > 4


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me about the sea."}],
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-emulated-output-tokens": "15"},
    )
    chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert len([word for word in words if word]) == 15
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 15


def test_a_text_completion_whole_and_streamed(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 7}
    whole = client.completions.create(**ask, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    assert len(whole.choices[0].text.split()) == 7
    stream = client.completions.create(**ask, stream=True, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    assert len([chunk for chunk in stream if chunk.choices and chunk.choices[0].text]) == 7


async def test_the_asynchronous_client(router: Router) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=5,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        words = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
    assert len([word for word in words if word]) == 5


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-imaginary"):
        client.chat.completions.create(
            model="gpt-imaginary", messages=[{"role": "user", "content": "Hello"}]
        )


def test_what_the_engine_refuses_reaches_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=10_000_000
        )
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model=MODEL, messages=[])


def test_a_client_that_stops_reading_frees_the_engine(client: openai.OpenAI, backends: Backends) -> None:
    import time
    import urllib.request

    from steersman.env.engine_metrics import parse_metrics

    def running() -> float:
        pages = [urllib.request.urlopen(f"{url}/metrics", timeout=5).read() for url in backends.urls]
        return sum(parse_metrics(page).running + parse_metrics(page).waiting for page in pages)

    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to a million."}],
        max_tokens=100_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    assert running() == 1
    stream.close()
    deadline = time.monotonic() + 10
    while running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running() == 0
