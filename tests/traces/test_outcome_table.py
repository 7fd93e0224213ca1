"""A table gives back every record as it was, and tells what it cannot."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman.traces.framing import Damage
from steersman.traces.outcome_reading import is_outcome_log, read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_table import OutcomeTableWriter, read_table, schema
from steersman.traces.schema import Status
from tests.traces.test_outcome_record import assert_same, records


def table(path: Path, *groups: list[OutcomeRecord], damage: tuple[Damage, ...] = ()) -> Path:
    file = io.BytesIO()
    with OutcomeTableWriter(file) as writer:
        for group in groups:
            writer.write(group)
        writer.damage = damage
    path.write_bytes(file.getvalue())
    return path


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records(), max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, given_: list[OutcomeRecord]) -> None:
    framed = [OutcomeRecord.from_json(record.to_json()) for record in given_]
    path = table(tmp_path_factory.mktemp("t") / "outcomes-1.parquet", framed[:2], framed[2:])
    for read, expected in zip(read_outcomes(path), framed, strict=True):
        assert_same(expected, read)


@pytest.mark.parametrize(
    "strange",
    [
        {"max_tokens": 2**63},
        {"state": np.ones(3)},
        {"tenant": 7},
        {"block_hashes": (2**63,)},
    ],
)
def test_a_record_that_fits_no_table_is_kept_among_others(
    tmp_path: Path, strange: dict[str, object]
) -> None:
    odd = replace(OutcomeRecord("odd", 2.0, 20, model="m"), **strange)  # type: ignore[arg-type]
    known = [
        OutcomeRecord("a", 1.0, 10),
        odd,
        OutcomeRecord("b", 3.0, 30, scores=np.ones(2, np.float32)),
    ]
    path = table(tmp_path / "outcomes-1.parquet", known)
    for read, expected in zip(read_outcomes(path), known, strict=True):
        assert_same(expected, read)


def test_only_the_fields_that_are_needed_are_read(tmp_path: Path) -> None:
    record = OutcomeRecord("a", 1.0, 10, tenant="t", policy="p2c", status=Status.FAILED)
    path = table(tmp_path / "outcomes-1.parquet", [record])
    (read,) = read_outcomes(path, only={"status"})
    assert (read.request_id, read.arrival_unix_s, read.input_tokens) == ("a", 1.0, 10)
    assert (read.status, read.tenant, read.policy) == (Status.FAILED, "", "")


def test_damage_of_the_frames_is_remembered(tmp_path: Path) -> None:
    told = Damage(tmp_path / "outcomes-1.log", 17, 4, "has a wrong checksum")
    path = table(tmp_path / "outcomes-1.parquet", [OutcomeRecord("a", 1.0, 10)], damage=(told,))
    damage: list[Damage] = []
    assert [r.request_id for r in read_outcomes(path, on_damage=damage.append)] == ["a"]
    assert damage == [Damage(path, 17, 4, "has a wrong checksum")]


def test_a_flipped_byte_is_told_and_costs_its_row_group(tmp_path: Path) -> None:
    groups = [[OutcomeRecord(f"r{g}-{i}", g + i / 100, 10) for i in range(50)] for g in range(4)]
    path = table(tmp_path / "outcomes-1.parquet", *groups)
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0x55
    path.write_bytes(data)
    damage: list[Damage] = []
    whole = [record.request_id for record in read_outcomes(path, on_damage=damage.append)]
    assert whole == [record.request_id for group in (0, 2, 3) for record in groups[group]]
    assert len(damage) == 1


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100), b"nonsense"])
def test_what_is_no_table_is_damage_or_no_log(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "outcomes-1.parquet"
    path.write_bytes(data)
    assert not is_outcome_log(path)
    assert [type(item) for item in read_table(path)] == [Damage]


def test_a_later_version_may_have_more_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "outcomes-1.parquet", [OutcomeRecord("a", 1.0, 10)])
    wider = pq.read_table(path).append_column("tomorrow", [[1]])
    pq.write_table(wider, path)
    narrower = wider.drop_columns(["arm", "tomorrow"])
    (record,) = read_outcomes(path)
    pq.write_table(narrower, path)
    (older,) = read_outcomes(path)
    assert_same(record, older)
    assert is_outcome_log(path)
    assert b"steersman.outcomes" in (schema().metadata or {})
