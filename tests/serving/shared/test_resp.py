"""The protocol, cut anywhere and broken anyhow."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.shared.resp import MOST_BYTES, BadReply, Replies, ReplyError, command

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


def wire(reply: Any) -> bytes:
    """As a server writes it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(wire, reply))


@given(st.lists(replies, max_size=6), st.lists(st.integers(0, 200), max_size=8))
def test_replies_are_the_same_however_they_are_cut(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(map(wire, sent))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parser = Replies()
    got = [reply for start, end in itertools.pairwise(edges) for reply in parser.feed(data[start:end])]
    assert got == sent


@given(st.binary(max_size=200))
def test_rubbish_is_refused_or_not_complete(data: bytes) -> None:
    with contextlib.suppress(BadReply):
        Replies().feed(data)


def test_errors_and_simple_words() -> None:
    ok, error = Replies().feed(b"+OK\r\n-WRONGPASS secret things\r\n")
    assert ok == b"OK"
    assert isinstance(error, ReplyError)
    assert error.code == "WRONGPASS"


@pytest.mark.parametrize("data", [b"!x\r\n", b":x\r\n", b"$99999999999\r\n", b"a" * (MOST_BYTES + 1)])
def test_what_is_not_the_protocol(data: bytes) -> None:
    with pytest.raises(BadReply):
        Replies().feed(data)


def test_commands_carry_any_bytes_and_all_digits() -> None:
    assert (
        command("GET", b"a\r\nb", 3, 0.1)
        == b"*4\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n$1\r\n3\r\n$3\r\n0.1\r\n"
    )
