"""Compaction loses nothing and doubles nothing, whatever kills it, and keeps within its bounds."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.traces.errors import TraceError
from steersman.traces.framing import Damage, read_frames
from steersman.traces.outcome_compaction import compact
from steersman.traces.outcome_log import OutcomeLogWriter, read_newest, read_outcomes, segments
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import FRAMED, TABLE, framed_segments, is_closed, partials
from steersman.traces.readers import load_trace

KILL_AT_EVERY_STEP = """
import os, shutil, signal, sys
from pathlib import Path
from steersman.traces import outcome_compaction, outcome_table, outcome_segments
import pyarrow.parquet
template, copies = Path(sys.argv[1]), Path(sys.argv[2])
step = 0

def kill_at(wanted):
    def reached(*_):
        global step
        step += 1
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
    def watch(event, arguments):
        if event in ("open", "os.rename", "os.remove") and str(copies) in str(arguments[0]):
            reached()
    sys.addaudithook(watch)
    def around(owner, name):
        real = getattr(owner, name)
        def wrapped(*arguments):
            reached()
            done = real(*arguments)
            reached()
            return done
        setattr(owner, name, wrapped)
    os.fsync = lambda fd: None  # slow, and of no use against kills
    around(os, "fsync")
    around(outcome_table.OutcomeTableWriter, "write")
    around(outcome_table.OutcomeTableWriter, "__exit__")

for wanted in range(1, 1000):
    copy = copies / str(wanted)
    shutil.copytree(template, copy)
    child = os.fork()
    if child == 0:
        kill_at(wanted)
        outcome_compaction.compact(copy, total_bytes=10**9, segment_bytes=10**6)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        print(wanted, os.WEXITSTATUS(status))
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing does nothing against kills, and takes most of the time."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("os.fdatasync", lambda fd: None)


def _record(i: int, padding: int = 0) -> OutcomeRecord:
    return OutcomeRecord(f"r{i}", float(i), i, tenant="x" * padding, e2e_s=0.5)


def _ids(path: Path) -> list[str]:
    return [record.request_id for record in read_outcomes(path)]


def _size(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the writer makes room in a thread of its own
            total += path.stat().st_size
    return total


def _log(directory: Path, count: int, segment_bytes: int = 4_000, padding: int = 300) -> list[str]:
    with OutcomeLogWriter(directory, segment_bytes=segment_bytes, total_bytes=10**9) as writer:
        for i in range(count):
            writer.append(_record(i, padding))
            if i % 10 == 9:
                writer.flush()
    return [f"r{i}" for i in range(count)]


def test_a_log_reads_the_same_before_and_after(tmp_path: Path) -> None:
    ids = _log(tmp_path, 60)
    before, newest = load_trace(tmp_path), read_newest(tmp_path, 7, lambda r: r.request_id)
    done = compact(tmp_path)
    assert (done.records, done.damaged) == (60, 0)
    assert done.segments > 2
    assert {path.suffix for path in tmp_path.iterdir()} == {TABLE}
    assert _ids(tmp_path) == ids
    assert read_newest(tmp_path, 7, lambda r: r.request_id) == newest == ids[-7:]
    assert load_trace(tmp_path).fingerprint() == before.fingerprint()
    assert load_trace(segments(tmp_path)[0]).request_ids[0] == "r0"
    assert compact(tmp_path).segments == 0


def test_what_is_being_written_stays_framed(tmp_path: Path) -> None:
    _log(tmp_path, 10)
    with OutcomeLogWriter(tmp_path) as writer:
        writer.append(_record(10))
        writer.flush()
        compact(tmp_path)
        assert [path.suffix for path in segments(tmp_path)][-2:] == [TABLE, FRAMED]
        writer.append(_record(11))
    assert _ids(tmp_path) == [f"r{i}" for i in range(12)]


def test_a_kill_at_any_step_neither_loses_nor_doubles(tmp_path: Path) -> None:
    template, copies = tmp_path / "log", tmp_path / "copies"
    copies.mkdir()
    ids = _log(template, 6)
    done = subprocess.run(
        [sys.executable, "-c", KILL_AT_EVERY_STEP, str(template), str(copies)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    steps, status = map(int, done.stdout.split())
    assert status == 0
    assert steps > 8 * len(framed_segments(template))
    for wanted in range(1, steps + 1):
        copy = copies / str(wanted)
        assert _ids(copy) == ids, f"killed at step {wanted}"
        compact(copy)
        assert _ids(copy) == ids, f"killed at step {wanted}, and compacted again"
        assert {path.suffix for path in copy.iterdir()} == {TABLE}


def test_a_torn_tail_and_a_flipped_byte_are_remembered(tmp_path: Path) -> None:
    _log(tmp_path, 5, segment_bytes=10**6)
    (framed,) = framed_segments(tmp_path)
    data = bytearray(framed.read_bytes()[:-10])
    data[data.index(b"r2")] ^= 1
    framed.write_bytes(data)
    before: list[Damage] = []
    after: list[Damage] = []
    ids = [r.request_id for r in read_outcomes(tmp_path, on_damage=before.append)]
    done = compact(tmp_path)
    assert (done.records, done.damaged) == (3, 2)
    assert [r.request_id for r in read_outcomes(tmp_path, on_damage=after.append)] == ids
    assert [(d.offset, d.size) for d in after] == [(d.offset, d.size) for d in before]


def test_both_kinds_together_keep_within_the_bound(tmp_path: Path) -> None:
    bound, segment = 120_000, 8_000
    with OutcomeLogWriter(tmp_path, segment_bytes=segment, total_bytes=bound) as writer:
        for i in range(600):
            writer.append(_record(i, 400))
            if i % 10 == 9:
                writer.flush()
            if i % 50 == 49:
                compact(tmp_path, total_bytes=bound, segment_bytes=segment)
            assert _size(tmp_path) <= bound
    ids = _ids(tmp_path)
    assert ids == [f"r{i}" for i in range(600 - len(ids), 600)]
    assert len(segments(tmp_path)) > 2


def test_what_a_kill_left_behind_is_cleared(tmp_path: Path) -> None:
    _log(tmp_path, 10)
    (tmp_path / ".outcomes-00000000000000000001-1.parquet.partial").write_bytes(b"half a table")
    compact(tmp_path)
    assert partials(tmp_path) == []


def test_a_writer_two_compactions_and_a_reader_at_once(tmp_path: Path) -> None:
    """The reader never misses a record that was flushed before it began."""
    total, stop, faults = 160, threading.Event(), list[BaseException]()

    def compacting() -> None:
        try:
            while not stop.is_set():
                if segments(tmp_path):
                    compact(tmp_path)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=compacting) for _ in range(2)]
    with OutcomeLogWriter(tmp_path, segment_bytes=4_000, total_bytes=10**9) as writer:
        for thread in threads:
            thread.start()
        try:
            for i in range(total):
                writer.append(_record(i, 300))
                if i % 40 == 39:
                    assert writer.flush()
                    assert _ids(tmp_path) == [f"r{k}" for k in range(i + 1)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert faults == []
    assert _ids(tmp_path) == [f"r{k}" for k in range(total)]


def test_a_segment_is_closed_at_its_age(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path, flush_interval_s=0.001, segment_s=0.0) as writer:
        for i in range(3):
            writer.append(_record(i))
            while len(segments(tmp_path)) <= i or not is_closed(segments(tmp_path)[i]):
                threading.Event().wait(0.001)
    assert _ids(tmp_path) == ["r0", "r1", "r2"]


def test_nothing_to_compact_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"has no outcome log segments"):
        compact(tmp_path)
    with pytest.raises(TraceError, match=r"has no outcome log segments"):
        compact(tmp_path / "nowhere")


def test_a_disk_that_refuses_keeps_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = _log(tmp_path, 20)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TraceError, match=r"cannot be compacted .No space left"):
        compact(tmp_path)
    assert partials(tmp_path) == []
    assert _ids(tmp_path) == ids


def test_a_segment_that_is_compacted_while_it_is_opened_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OutcomeLogWriter(tmp_path) as writer:
        for i in range(5):
            writer.append(_record(i, 300))

    def compacted_first(path: Path) -> Iterator[tuple[int, bytes | Damage]]:
        monkeypatch.undo()
        compact(tmp_path)
        assert not path.exists()
        return read_frames(path)

    monkeypatch.setattr("steersman.traces.outcome_reading.read_frames", compacted_first)
    assert _ids(tmp_path) == [f"r{i}" for i in range(5)]
