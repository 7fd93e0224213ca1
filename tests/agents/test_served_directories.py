from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.agents.evidence import Evidence
from steersman.agents.served_directories import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    RECORD,
    ServedDirectories,
)
from steersman.agents.served_evidence import forget_evidence, leave_evidence, waiting_evidence
from steersman.predictors.bundle import Bundle, load_bundle, write_bundle
from steersman.traces.errors import ArtifactError


def bundle(root: Path, version: str) -> Bundle:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    files = {"note.txt": version.encode()}
    return write_bundle(root / version, files, version=version, code_version="0", created=created)


@pytest.fixture
def served(tmp_path: Path) -> ServedDirectories:
    return ServedDirectories(tmp_path / "served")


def versions(served: ServedDirectories, *names: str) -> list[str | None]:
    found = [served.bundle(name) for name in names]
    return [None if one is None else one.version for one in found]


def test_a_replaced_champion_is_kept(served: ServedDirectories, tmp_path: Path) -> None:
    served.install(CHAMPION, bundle(tmp_path, "b1"), "1")
    assert versions(served, CHAMPION, PREVIOUS) == ["b1", None]
    served.install(CHAMPION, bundle(tmp_path, "b2"), "2")
    served.install(CHALLENGER, bundle(tmp_path, "b3"), "3")
    assert versions(served, CHAMPION, PREVIOUS, CHALLENGER) == ["b2", "b1", "b3"]
    served.install(CHAMPION, bundle(tmp_path, "b2"), "2")
    assert versions(served, CHAMPION, PREVIOUS) == ["b2", "b1"], "again the same: nothing is replaced"


def test_rolling_back_swaps_and_notes_that_nobody_was_told(
    served: ServedDirectories, tmp_path: Path
) -> None:
    served.install(CHAMPION, bundle(tmp_path, "b1"), "1")
    served.install(CHAMPION, bundle(tmp_path, "b2"), "2")
    back, version = served.roll_back()
    assert (back.version, version, served.record().untold) == ("b1", "1", "1")
    assert versions(served, CHAMPION, PREVIOUS) == ["b1", "b2"]
    served.told()
    assert served.record().untold == ""
    assert served.roll_back()[1] == "2", "and forward again"


def test_without_a_champion_before_there_is_no_way_back(
    served: ServedDirectories, tmp_path: Path
) -> None:
    served.install(CHAMPION, bundle(tmp_path, "b1"), "1")
    with pytest.raises(ArtifactError, match="no champion before this one"):
        served.roll_back()
    assert load_bundle(served.directory(CHAMPION)).version == "b1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"versions": 3}', '{"other": 1}'])
def test_a_damaged_record_is_written_anew(served: ServedDirectories, tmp_path: Path, text: str) -> None:
    served.root.mkdir()
    (served.root / RECORD).write_text(text)
    assert served.record().versions == {}
    served.install(CHAMPION, bundle(tmp_path, "b1"), "1")
    assert served.record().versions == {CHAMPION: "1"}


def test_evidence_waits_in_the_order_of_time_and_damaged_files_are_set_aside(tmp_path: Path) -> None:
    later = Evidence("canary", "b2", "b1", "better", ("x",), {}, 20.0)
    first = Evidence("canary", "b2", "b1", "worse", ("y",), {}, 10.0)
    for made in (later, first, first):
        leave_evidence(tmp_path, made)
    (tmp_path / "evidence" / "000.json").write_text("{")
    waiting = waiting_evidence(tmp_path)
    assert [made for _, made in waiting] == [first, later]
    assert (tmp_path / "evidence" / "000.bad").is_file()
    forget_evidence(waiting[0][0])
    assert [made for _, made in waiting_evidence(tmp_path)] == [later]
