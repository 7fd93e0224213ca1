"""A 200 that is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.rubbish import begins_stream, is_whole_answer
from tests.serving.backends import Behaviour, completion, events, stream, whole
from tests.serving.harness import chat, eventually, rig

PAGE = b"<html><body>Welcome</body></html>"
HALF = b'{"choices":[{"mess'
LOG = b"Traceback (most recent call last): CUDA error"
CALM = {"health": {"interval_s": 30.0}}


@pytest.mark.parametrize("body", [completion(), b"{}", b' {"a":1}\n', b"\r\n{}"])
def test_objects_are_answers(body: bytes) -> None:
    assert is_whole_answer(body)


@pytest.mark.parametrize("body", [PAGE, HALF, LOG, b"", b"  ", b"[]", b"null"])
def test_others_are_none(body: bytes) -> None:
    assert not is_whole_answer(body)


@pytest.mark.parametrize(
    "piece",
    [
        *events(2),
        b": comment",
        b"event: x",
        b"\n\ndata: 1",
        b"\xef\xbb\xbfdata:",
        b"d",
        b"\n",
        b"retry:1",
        b"id: 7",
    ],
)
def test_how_streams_begin(piece: bytes) -> None:
    assert begins_stream(piece)


@pytest.mark.parametrize("piece", [PAGE, HALF, LOG, b'{"error"', b"<html>"])
def test_how_they_do_not(piece: bytes) -> None:
    assert not begins_stream(piece)


@given(st.binary(max_size=200))
def test_whatever_comes(body: bytes) -> None:
    is_whole_answer(body)
    begins_stream(body)


@given(st.integers(1, 400))
def test_a_stream_may_be_cut_anywhere(at: int) -> None:
    text = b"".join(events(3))
    assert begins_stream(text[:at])


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        whole(PAGE, content_type="text/html"),
        whole(HALF),
        stream([LOG, LOG]),
        stream([PAGE], then="abort"),
        whole(b"", content_type="text/event-stream"),
    ],
    ids=["page", "half", "log", "broken-page", "nothing"],
)
async def test_it_is_tried_elsewhere_and_charged(bad: Behaviour, streaming: bool) -> None:
    text = b"".join(events(2)) if streaming else completion()
    good = stream([text]) if streaming else whole(text)
    async with rig(bad, good, **CALM) as (router, fleet):
        answers = [await router.post(chat(f"{i}", stream=streaming)) for i in range(8)]
        assert {(status, got) for status, got, _ in answers} == {(200, text)}
        assert not router.parts.fleet.replicas[0].health.healthy
        assert len(fleet[0].received) == 3
        assert not router.parts.fleet.state[:, 17:22].any()


@pytest.mark.parametrize("odd", [whole(PAGE, content_type="text/html"), stream([PAGE, PAGE])])
async def test_where_nobody_has_better_it_passes_and_charges_nobody(odd: Behaviour) -> None:
    async with rig(odd, odd, **CALM) as (router, _):
        for i in range(6):
            status, got, _ = await router.post(chat(f"{i}"))
            assert status == 200
            assert got in {PAGE, PAGE + PAGE}
        assert all(replica.health.healthy for replica in router.parts.fleet.replicas)


async def test_while_somebody_who_is_out_might_have_better_it_does_not_pass() -> None:
    async with rig(whole(PAGE), whole(completion()), health={"interval_s": 0.05}) as (router, fleet):
        fleet[1].health_status = 503
        await eventually(lambda: not router.parts.fleet.replicas[1].health.healthy)
        status, got, headers = await router.post()
        assert status == 503
        assert b"its answer is none" in got
        assert "retry-after" in headers


async def test_what_generates_nothing_answers_as_it_likes() -> None:
    async with rig(whole(b"[1,2]"), whole(b"[1,2]")) as (router, fleet):
        status, got, _ = await router.post({"model": "m", "prompt": "x"}, path="/tokenize")
        assert (status, got) == (200, b"[1,2]")
        assert len(fleet[0].received) + len(fleet[1].received) == 1
