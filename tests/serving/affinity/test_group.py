from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.affinity import AffinitySettings
from steersman.serving.affinity.group import group_of, response_group
from steersman.traces.schema import Request

ALL = AffinitySettings(keys=("session", "user", "prefix", "tenant"), prefix_blocks=2)


def request(**more: Any) -> Request:
    return replace(Request("r", 0.0, 10, model="m"), **more)


def test_the_first_key_that_a_request_has() -> None:
    everything = {"session_id": "s", "tenant": "t", "block_hashes": (1, 2, 3)}
    assert (group_of(request(**everything), "u", ALL) or "").startswith("session:")
    assert (group_of(request(**everything | {"session_id": None}), "u", ALL) or "").startswith("user:")
    assert (group_of(request(tenant="t", block_hashes=(1, 2)), "", ALL) or "").startswith("prefix:")
    assert (group_of(request(tenant="t", block_hashes=(1,)), "", ALL) or "").startswith("tenant:")
    assert group_of(request(), "", ALL) is None
    assert group_of(request(**everything), "u", AffinitySettings()) is None


def test_a_prefix_is_its_first_blocks() -> None:
    one, same, other = (request(block_hashes=blocks) for blocks in ((1, 2, 3), (1, 2, 9), (1, 3, 3)))
    assert group_of(one, "", ALL) == group_of(same, "", ALL) != group_of(other, "", ALL)


@given(st.text(), st.text(), st.text(), st.text())
def test_names_tell_nobody_and_tenants_and_models_apart(a: str, b: str, tenant: str, other: str) -> None:
    one, two = (group_of(request(session_id=s or None, tenant=tenant), "", ALL) for s in (a, b))
    assert (one == two) is (a == b)
    if a and tenant != other:
        assert one != group_of(request(session_id=a, tenant=other), "", ALL)
    if len(a) > 6:
        assert a not in (one or "")
    assert (response_group(a, tenant) == response_group(b, other)) is ((a, tenant) == (b, other))
