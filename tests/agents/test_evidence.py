from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.evidence import KINDS, VERDICTS, Evidence
from steersman.traces.errors import ArtifactError

GOOD: dict[str, Any] = {
    "kind": "shadow",
    "challenger": "b2",
    "champion": "b1",
    "verdict": "no_worse",
    "reasons": ["agrees on 97 % of 12000 requests"],
    "figures": {"agreement": 0.97},
    "made_unix_s": 1_800_000_000.0,
}

texts = st.text(min_size=1).filter(str.strip)
evidence = st.builds(
    Evidence,
    kind=st.sampled_from(KINDS),
    challenger=texts,
    champion=st.text(),
    verdict=st.sampled_from(VERDICTS),
    reasons=st.lists(texts, min_size=1).map(tuple),
    figures=st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False)),
    made_unix_s=st.floats(0, 1e12),
    by=st.text(),
)


@given(evidence)
def test_json_keeps_all_of_it(made: Evidence) -> None:
    text = made.to_json()
    assert "\n" not in text
    assert Evidence.from_json(text) == made


def test_figures_that_are_not_finite_are_left_out() -> None:
    made = Evidence("shadow", "b2", "b1", "better", ("why",), {"ess": math.nan, "share": 0.5})
    assert Evidence.from_json(made.to_json()).figures == {"share": 0.5}


def test_keys_of_a_later_version_are_ignored_and_later_ones_default() -> None:
    read = Evidence.from_json(json.dumps(GOOD | {"colour": "blue"}))
    assert read.by == ""
    assert read.favourable


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "rumour"}, "'kind' is 'rumour'; use one of evaluation"),
        ({"verdict": "splendid"}, "'verdict' is 'splendid'; use one of better"),
        ({"challenger": ""}, "'challenger'"),
        ({"challenger": 7}, "'challenger' is '7'; it is text"),
        ({"reasons": []}, "'reasons'"),
        ({"reasons": "because"}, "list of texts"),
        ({"reasons": [" "]}, "none empty"),
        ({"figures": [1]}, "maps names to numbers"),
        ({"figures": {"x": "much"}}, "'figures.x'"),
        ({"figures": {"x": True}}, "'figures.x'"),
        ({"made_unix_s": "noon"}, "'made_unix_s'"),
        ({"made_unix_s": -1}, "'made_unix_s'"),
    ],
)
def test_what_makes_no_sense_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Evidence.from_json(json.dumps(GOOD | change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["kind", "challenger", "champion", "verdict", "reasons", "made_unix_s"])
def test_a_missing_key_is_named(key: str) -> None:
    values = {name: value for name, value in GOOD.items() if name != key}
    with pytest.raises(ArtifactError, match=f"'{key}' is missing"):
        Evidence.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[1]", b"\xff"])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ArtifactError, match="evidence: not"):
        Evidence.from_json(text)
