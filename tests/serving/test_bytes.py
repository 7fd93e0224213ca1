"""No byte of a body or of an answer is changed, whatever JSON it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.backends import Backend, Received, backends
from tests.serving.harness import Routed, routing, settings_for

ODD = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
numbers = st.sampled_from(
    ["0", "-0", "1.50", "1e5", "1E+2", "123456789012345678901234567890", "NaN", "-Infinity", "1e999"]
)
strings = st.sampled_from(
    ['"\\u0065"', '"\\ud800"', '"\\ud83d\\ude00"', '"é"', '"\\/"', '"\\"model\\":\\"x\\""', '""']
)
values = st.recursive(
    numbers | strings | st.sampled_from(["null", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[ {' , '.join(items)}]")
        | st.lists(st.tuples(strings, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{key} :{value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=8,
)
members = st.tuples(st.sampled_from(['"odd"', '"stop"', '"messages"', '"\\u006fdd"', '"n"']), values)
blanks = st.sampled_from(["", " ", "\n\t", "\r\n"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Objects that name the model, as no serializer would write them."""
    before = draw(st.lists(members, max_size=3))
    after = draw(st.lists(members, max_size=3))
    named = [*before, ('"model"', '"m"'), *after]
    return (
        draw(blanks) + "{" + ",".join(f"{draw(blanks)}{key}:{value}" for key, value in named) + "}"
    ).encode()


async def echo(request: Received, writer: asyncio.StreamWriter) -> None:
    """The body again, in two chunks, as JSON or as a stream."""
    kind = request.header("x-kind") or ""
    writer.write(
        f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    )
    middle = len(request.body) // 2
    for piece in (request.body[:middle], request.body[middle:]):
        if piece:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
    writer.write(b"0\r\n\r\n")


@pytest.fixture
async def replica() -> AsyncIterator[Backend]:
    async with backends(echo) as (made,):
        yield made


@pytest.fixture
async def router(replica: Backend) -> AsyncIterator[Routed]:
    async with routing(settings_for([replica])) as made:
        yield made


@ODD
@given(body=bodies(), kind=st.sampled_from(["application/json", "text/event-stream", "text/odd"]))
async def test_bodies_and_answers_pass_byte_by_byte(
    router: Routed, replica: Backend, body: bytes, kind: str
) -> None:
    status, got, _ = await router.post(body, headers={"x-kind": kind})
    assert (status, got) == (200, body)
    assert replica.received[-1].body == body


header_values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@settings(ODD, max_examples=25)
@given(value=header_values, name=st.from_regex(r"x-[a-z][a-z0-9_-]{0,20}", fullmatch=True))
async def test_unknown_headers_pass(router: Routed, replica: Backend, name: str, value: str) -> None:
    name = f"{name}-odd"
    await router.post(headers={name: value, "x-kind": "application/json"})
    assert replica.received[-1].header(name) == value
