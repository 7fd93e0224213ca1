"""Whatever is sent, the router answers in its own words or hangs up, forwards only what it understood,
and serves the next request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman.serving.surface import SURFACE
from tests.serving.backends import Backend, completion, whole
from tests.serving.harness import Routed, chat, rig
from tests.serving.raw import line, post, sized

FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ANSWER = re.compile(rb"HTTP/1\.1 [2345]\d\d [^\r\n]*\r\n")
PATHS = {api.path for api in SURFACE}
EMBEDDED = b"POST /v1/completions?smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
async def served() -> AsyncIterator[tuple[Routed, Backend]]:
    quick = {"headers_s": 0.5, "body_s": 0.5, "keep_alive_s": 1.0, "drain_s": 0.5}
    sections = {"timeouts": quick, "limits": {"body_bytes": 65_536, "header_bytes": 4096}}
    async with rig(whole(completion()), **sections) as (router, (backend,)):
        yield router, backend


async def send(router: Routed, data: bytes) -> bytes:
    """All that is answered until the router hangs up or says nothing for a moment."""
    async with line(router) as open_line:
        open_line.send(data)
        return await open_line.said()


async def check(router: Routed, backend: Backend, said: bytes) -> None:
    """The invariants."""
    assert said == b"" or ANSWER.match(said), "an answer, and its own"
    for received in backend.received:
        assert received.path.partition("?")[0] in PATHS
        assert received.header("host") == backend.url.removeprefix("http://")
        assert [key for key, _ in received.headers].count("content-length") == 1
        assert received.header("transfer-encoding") is None
    backend.received.clear()
    status, body, _ = await router.post()
    assert (status, body) == (200, completion())
    backend.received.clear()


names = st.sampled_from(
    b"content-length transfer-encoding connection upgrade expect host trailer te cookie authorization "
    b"x-session-id x-steersman-priority x-request-id".split()
)
values = (
    st.sampled_from(
        b"0 2 chunked identity close keep-alive upgrade h2c 100-continue -1 1e3 0x10 9999999999".split()
    )
    | st.sampled_from([b"", b" ", b"\xff\xfe", b"gzip, chunked", b"Bearer x"])
    | st.binary(max_size=30)
)
headers = st.lists(st.tuples(names, values), max_size=6)
blobs = st.binary(max_size=300)


@FUZZ
@given(data=st.binary(min_size=1, max_size=2000))
async def test_any_bytes(served: tuple[Routed, Backend], data: bytes) -> None:
    router, backend = served
    await check(router, backend, await send(router, data))


@FUZZ
@given(
    method=st.sampled_from(
        [b"POST", b"GET", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"post"]
    ),
    target=st.sampled_from(
        b"/v1/chat/completions //v1/models * http://evil/v1/completions /v1/%2e%2e/x evil:80 "
        b"/v1/models/\xff /v1/models/%00%ff /health?% /tokenize;x?#".split()
    ),
    version=st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.1 ", b""]),
    headers=headers,
    body=blobs,
)
async def test_requests_almost_as_they_should_be(
    served: tuple[Routed, Backend],
    method: bytes,
    target: bytes,
    version: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
) -> None:
    router, backend = served
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    data = b"%s %s %s\r\nhost: x\r\n%s\r\n%s" % (method, target, version, head, body)
    await check(router, backend, await send(router, data))


@FUZZ
@given(headers=headers, before=st.booleans(), cut=st.integers(0, 400))
async def test_a_request_within_a_body_is_never_served(
    served: tuple[Routed, Backend], headers: list[tuple[bytes, bytes]], before: bool, cut: int
) -> None:
    router, backend = served
    body = orjson.dumps(chat()) + EMBEDDED
    length = b"content-length: %d" % len(body)
    more = [b"%s: %s" % header for header in headers if header[0] != b"host"]
    data = post(*([length, *more] if before else [*more, length]), body=body)
    async with line(router) as open_line:
        open_line.send(data[:cut])
        await asyncio.sleep(0)
        open_line.send(data[cut:])
        said = await open_line.said()
    # One that was refused closes the connection; one that was read had all of the body for its own.
    assert not any("smuggled" in received.path for received in backend.received)
    assert len(ANSWER.findall(said)) <= 1
    await check(router, backend, b"")


odd_json = st.recursive(
    st.sampled_from(
        [b"1", b"-0", b"1e999", b"NaN", b'"\\ud800"', b'"\xff"', b'"\xc0\xaf"', b"nul", b""]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]")
        | st.lists(inner, max_size=3).map(
            lambda items: b"{" + b",".join(b'"k%d":%s' % (i, v) for i, v in enumerate(items)) + b"}"
        )
    ),
    max_leaves=12,
)
fields = st.sampled_from(
    [b"model", b"messages", b"prompt", b"stream", b"max_tokens", b"n", b"tools", b"input", b"stop"]
)


@FUZZ
@given(
    path=st.sampled_from(sorted(path.encode() for path in PATHS)),
    members=st.lists(st.tuples(fields, odd_json), max_size=5),
    named=st.booleans(),
)
async def test_odd_json(
    served: tuple[Routed, Backend], path: bytes, members: list[tuple[bytes, bytes]], named: bool
) -> None:
    router, backend = served
    pairs = [b'"%s":%s' % member for member in members] + ([b'"model":"m"'] if named else [])
    body = b"{" + b",".join(pairs) + b"}"
    async with line(router) as open_line:
        open_line.send(post(b"content-length: %d" % len(body), body=body, path=path))
        assert (await open_line.answer())[0] in {200, 400, 404}
    await check(router, backend, b"")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"model":"m","messages":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        b'{"model":"' + b"m" * 60_000 + b'"}',
        b'{"model":"m\\r\\nx-evil: 1","messages":[]}',
        b'{"model":"\xff\xfe"}',
        b'{"model":"m","messages":' + b"9" * 60_000 + b"}",
        b"\xef\xbb\xbf{}",
        b"[" + b"1," * 30_000 + b"1]",
    ],
    ids=[
        "deep lists",
        "deep objects",
        "long name",
        "name with lines",
        "no UTF-8",
        "long number",
        "BOM",
        "list",
    ],
)
async def test_bodies_made_to_hurt(served: tuple[Routed, Backend], body: bytes) -> None:
    router, backend = served
    async with line(router) as open_line:
        open_line.send(sized(body))
        status, told = await open_line.answer()
    assert status in {200, 400, 404, 413}
    assert b"\r\nx-evil" not in told
    await check(router, backend, b"")


@pytest.mark.parametrize(
    "value",
    [b"a\r\nx-evil: 1", b"a\nx-evil: 1", b"a\rx-evil: 1", b"a\0", b"a%0d%0ax-evil: 1", b"\xe5\x98\x8a"],
)
@pytest.mark.parametrize("name", [b"x-session-id", b"x-request-id", b"x-any", b"x-steersman-tenant"])
async def test_a_value_never_becomes_a_header(
    served: tuple[Routed, Backend], name: bytes, value: bytes
) -> None:
    """A raw line break makes two headers, as it would for everybody; anything else stays a value."""
    router, backend = served
    said = await send(router, sized(orjson.dumps(chat()), name + b": " + value))
    assert b"\nx-evil" not in said
    if backend.received and b"\r\n" not in value:
        assert backend.received[0].header("x-evil") is None
    await check(router, backend, said)
