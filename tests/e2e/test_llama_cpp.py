"""A real engine with a real model behind the router, asked through the official client."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.serving.harness import eventually
from tests.support.llama_server import MODEL, running
from tests.support.processes import free_port, run_cli, serving

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name the capital of France."}]
TOKENS = 12


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running() as url:
        yield url


@pytest.fixture(scope="module")
def router(engine: str) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving("serve", "--backend", engine, "--port", str(port), url=url):
        yield url


@pytest.fixture(scope="module")
def client(router: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{router}/v1", api_key="none", max_retries=0) as made:
        yield made


def said(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=TOKENS, temperature=0.0, seed=1
    )
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= TOKENS
    return answer.choices[0].message.content or ""


def test_an_answer_is_the_engines_own_streamed_or_not(client: openai.OpenAI, engine: str) -> None:
    with openai.OpenAI(base_url=f"{engine}/v1", api_key="none") as direct:
        expected = said(direct)
    assert expected
    assert said(client) == expected
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=TOKENS,
            temperature=0.0,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == expected
    assert len(pieces) > 2
    assert chunks[-1].usage is not None


def test_an_engines_refusal_is_passed_on(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 3000}], max_tokens=4
        )
    assert "context" in str(raised.value)


async def test_a_client_that_leaves_frees_the_engine(client: openai.OpenAI, engine: str) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert working(engine)
    stream.close()
    await eventually(lambda: not working(engine), within_s=20.0)


def working(engine: str) -> bool:
    page = urllib.request.urlopen(f"{engine}/metrics", timeout=10).read().decode()
    return "\nllamacpp:requests_processing 0" not in page


def test_its_metrics_page_is_understood(engine: str) -> None:
    done = run_cli("serve", "--check", "--json", "--backend", engine)
    (told,) = json.loads(done.stdout)["backends"]
    assert (told["engine"], told["models"], told["problems"]) == ("llama.cpp", [MODEL], [])
