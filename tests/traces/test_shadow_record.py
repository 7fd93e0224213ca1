"""What is written of an opinion is read again."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.framing import Damage, frame
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.outcome_segments import segments
from steersman.traces.shadow_record import STEM, ShadowRecord, read_shadow

floats = st.floats(0.0, 1e9) | st.just(math.nan)
vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5)


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other, equal_nan=True)
    if isinstance(one, float):
        return isinstance(other, float) and (one == other or (math.isnan(one) and math.isnan(other)))
    return one == other


@given(
    st.text(max_size=20).filter(lambda text: text.isascii()),
    floats,
    floats,
    vectors,
    st.booleans(),
)
def test_a_record_survives_json(
    name: str, at_s: float, propensity: float, scores: list[float], scored: bool
) -> None:
    record = ShadowRecord(
        request_id=name,
        decided_at_s=at_s,
        challenger="v1",
        choice=1,
        propensity=propensity,
        scores=np.array(scores, dtype=np.float32) if scored else None,
        own=np.array([1.0, 2.0, math.nan, 4.0]),
    )
    again = ShadowRecord.from_json(record.to_json())
    for each in fields(record):
        assert same(getattr(record, each.name), getattr(again, each.name)), each.name


def test_what_a_later_version_adds_is_ignored_and_what_is_missing_is_told() -> None:
    later = b'{"request_id":"a","decided_at_s":1,"challenger":"v","x":1}'
    assert ShadowRecord.from_json(later).key == ("a", 1.0)
    with pytest.raises(ValueError, match="challenger"):
        ShadowRecord.from_json(b'{"request_id":"a","decided_at_s":1}')
    with pytest.raises(ValueError, match="not an object"):
        ShadowRecord.from_json(b"[]")


def test_a_log_is_read_by_decision_and_version(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path, stem=STEM) as log:
        log.append(ShadowRecord("a", 1.0, "v1", choice=0))
        log.append(ShadowRecord("a", 2.0, "v1", choice=1))
        log.append(ShadowRecord("b", 1.0, "v2", choice=2))
    told: list[Damage] = []
    assert set(read_shadow(tmp_path, "v1", on_damage=told.append)) == {("a", 1.0), ("a", 2.0)}
    assert set(read_shadow(tmp_path, on_damage=told.append)) == {("a", 1.0), ("a", 2.0), ("b", 1.0)}
    assert not told
    (path,) = segments(tmp_path, STEM)
    path.write_bytes(path.read_bytes() + frame(b"{}") + b"torn")
    assert len(read_shadow(tmp_path, on_damage=told.append)) == 3
    assert [damage.torn for damage in told] == [False, True]
    assert read_shadow(tmp_path / "none", on_damage=told.append) == {}
