"""One member changes, and no other byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.splice import set_member

NEW = b'"new\\u00fc"'


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"m"}', b'{"model":NEW}'),
        (
            b' {\n"a": [1, {"model": "x"}], "model" :  "m\\"}" , "b": 1.50}',
            b' {\n"a": [1, {"model": "x"}], "model" :  NEW , "b": 1.50}',
        ),
        (b'{"model":"a","model":"b"}', b'{"model":NEW,"model":NEW}'),
        (
            b'{"mod\\u0065l":"a","x":"\\"model\\":\\"b\\""}',
            b'{"mod\\u0065l":NEW,"x":"\\"model\\":\\"b\\""}',
        ),
        (b'{"x":"model","model":null}', b'{"x":"model","model":NEW}'),
        (b'{"model":{"a":["}"]},"z":1}', b'{"model":NEW,"z":1}'),
        (b'{"model":12e5}', b'{"model":NEW}'),
        (b'{"a":1}', b'{"model":NEW,"a":1}'),
        (b" { } ", b' {"model":NEW } '),
        (b'{"a":{"model":"m"}}', b'{"model":NEW,"a":{"model":"m"}}'),
        (b'{"a":"\\ud800","model":"m"}', b'{"a":"\\ud800","model":NEW}'),
    ],
    ids=range(11),
)
def test_only_the_value_changes(body: bytes, changed: bytes) -> None:
    assert set_member(body, "model", NEW) == changed.replace(b"NEW", NEW)


keys = st.sampled_from(["model", "Model", "a", 'mo"del', "модель", "model\\"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | keys | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)


@given(
    value=st.dictionaries(keys, values, max_size=6),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
)
def test_it_parses_to_the_same_object_with_one_member_set(
    value: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    got = json.loads(set_member(body, "model", NEW).decode("utf-8", "surrogatepass"))
    assert got == value | {"model": "newü"}
    if "model" in value:
        assert list(got) == list(value)


def test_a_long_prompt_is_skipped_quickly() -> None:
    body = b'{"prompt":"' + b"x\\n" * 2_000_000 + b'","tokens":[' + b"1," * 100_000 + b'1],"model":"m"}'
    assert set_member(body, "model", NEW) == body.replace(b'"m"}', NEW + b"}")
