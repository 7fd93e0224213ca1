"""The outcome log keeps what it flushed, whatever happens: kills, flipped bytes, full disks."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.framing import Damage, frame, read_frames
from steersman.traces.outcome_log import OutcomeLogWriter, read_outcomes, segments
from steersman.traces.outcome_record import OutcomeRecord

WRITE_FOR_EVER = """
import sys
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
writer = OutcomeLogWriter(sys.argv[1], segment_bytes=20_000, total_bytes=10**9, flush_interval_s=0.001)
i = 0
while True:
    for _ in range(50):
        writer.append(OutcomeRecord(f"r{i}", float(i), i, tenant="t" * (i % 300)))
        i += 1
    if writer.flush():
        print(i, flush=True)
"""


def _record(i: int, padding: int = 0) -> OutcomeRecord:
    return OutcomeRecord(f"r{i}", float(i), i, tenant="x" * padding)


def _ids(path: Path, damage: list[Damage] | None = None) -> list[str]:
    on_damage = None if damage is None else damage.append
    return [record.request_id for record in read_outcomes(path, on_damage=on_damage)]


def test_what_is_appended_comes_back_in_order(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path / "log") as writer:
        assert all(writer.append(_record(i)) for i in range(1000))
    assert (writer.written, writer.dropped, writer.write_errors, writer.queued) == (1000, 0, 0, 0)
    assert _ids(tmp_path / "log") == [f"r{i}" for i in range(1000)]
    assert _ids(segments(tmp_path / "log")[0]) == [f"r{i}" for i in range(1000)]


def test_background_thread_flushes(tmp_path: Path) -> None:
    writer = OutcomeLogWriter(tmp_path, flush_interval_s=0.001, sync_interval_s=0.0)
    writer.append(_record(1))
    deadline = time.monotonic() + 10
    while writer.queued and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _ids(tmp_path) == ["r1"]
    writer.close()
    assert writer.append(_record(2)) is False
    writer.close()


def test_it_tells_what_processor_time_it_takes(tmp_path: Path) -> None:
    before_s = time.process_time()
    with OutcomeLogWriter(tmp_path, flush_interval_s=0.001) as writer:
        deadline = time.monotonic() + 30
        while writer.cpu_s < 0.01 and time.monotonic() < deadline:
            writer.append(_record(1, padding=10_000))
            time.sleep(0.001)
        by_thread_s = writer.cpu_s
        writer.handing_s += 5.0
        assert writer.cpu_s >= by_thread_s + 5.0
    assert 0.01 <= by_thread_s <= time.process_time() - before_s


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_nothing_that_was_flushed(tmp_path: Path, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # it writes
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    flushed = ["50", *process.stdout.read().split()]
    process.stdout.close()
    process.wait()
    damage: list[Damage] = []
    ids = _ids(tmp_path, damage)
    assert ids == [f"r{i}" for i in range(len(ids))]
    assert len(ids) >= max(int(count) for count in flushed)
    assert all(item.torn for item in damage)
    with OutcomeLogWriter(tmp_path) as writer:  # life goes on in the same directory
        writer.append(_record(0))
    assert _ids(tmp_path) == [*ids, "r0"]


@given(st.integers(min_value=0), st.integers(1, 255))
def test_any_flipped_byte_spoils_its_own_record_only(position: int, flip: int) -> None:
    import tempfile

    frames = [frame(_record(i).to_json()) for i in range(5)]
    data = bytearray(b"".join(frames))
    position %= len(data)
    data[position] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes-1.log"
        path.write_bytes(data)
        damage: list[Damage] = []
        ids = _ids(path, damage)
    starts = np.cumsum([0, *map(len, frames)])
    hit = int(np.searchsorted(starts, position, side="right")) - 1
    spoilt = {hit}
    if position == starts[hit + 1] - 1:
        spoilt.add(hit + 1)  # without its end of line, the record swallows the next
    assert ids == [f"r{i}" for i in range(5) if i not in spoilt]
    assert damage
    assert damage[0].offset == starts[hit]


@given(st.integers(0, 10_000))
def test_torn_tail_is_told_from_damage(cut: int) -> None:
    import tempfile

    frames = [frame(_record(i).to_json()) for i in range(3)]
    whole = b"".join(frames)
    cut %= len(whole)
    starts = np.cumsum([0, *map(len, frames)])
    complete = int(np.searchsorted(starts, cut, side="right")) - 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes-1.log"
        path.write_bytes(whole[:cut])
        damage: list[Damage] = []
        assert _ids(path, damage) == [f"r{i}" for i in range(complete)]
    assert [item.torn for item in damage] == ([] if cut == starts[complete] else [True])


def test_whole_frames_that_are_no_records_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "outcomes-1.log"
    path.write_bytes(frame(b"{}") + frame(_record(1).to_json()) + b"\n" + b"\0" * 50)
    damage: list[Damage] = []
    assert _ids(path, damage) == ["r1"]
    assert [(item.offset, item.torn) for item in damage[:1]] == [(0, False)]
    assert "is not an outcome record" in damage[0].reason
    assert damage[-1].torn
    assert len(list(read_frames(path))) == 4


def test_damage_is_logged_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "outcomes-1.log"
    path.write_bytes(b"rubbish\n" + frame(_record(1).to_json())[:-3])
    assert _ids(path) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: skipped 8 bytes at byte 0: the record has no length and checksum in front"
    ]


def test_segments_rotate_and_the_total_is_bounded(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path, segment_bytes=10_000, total_bytes=50_000) as writer:
        for start in range(0, 1000, 10):
            for i in range(start, start + 10):
                writer.append(_record(i, padding=100))
            writer.flush()
            sizes = [path.stat().st_size for path in segments(tmp_path)]
            assert max(sizes) <= 10_000
            assert sum(sizes) <= 50_000
    assert writer.written == 1000
    ids = _ids(tmp_path)
    assert 20 < len(ids) < 1000
    assert ids == [f"r{i}" for i in range(1000 - len(ids), 1000)]  # the oldest are gone


def test_a_segment_in_use_is_never_deleted(tmp_path: Path) -> None:
    idle = OutcomeLogWriter(tmp_path)
    idle.append(_record(7))
    idle.flush()
    with OutcomeLogWriter(tmp_path, segment_bytes=5_000, total_bytes=10_000) as busy:
        for i in range(500):
            busy.append(_record(i))
    assert "r7" in _ids(tmp_path)
    idle.close()


def test_oversized_and_unwritable_records_are_dropped(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path, segment_bytes=5_000, total_bytes=10_000) as writer:
        writer.append(_record(1, padding=6_000))
        writer.append(OutcomeRecord("\ud800", 0.0, 1))
        writer.append(_record(2))
    assert (writer.written, writer.dropped) == (1, 2)
    assert _ids(tmp_path) == ["r2"]


def test_full_queue_drops_and_never_blocks(tmp_path: Path) -> None:
    writer = OutcomeLogWriter(tmp_path, queue_records=10, flush_interval_s=3600)
    with writer._lock:  # the disk hangs
        answers = [writer.append(_record(i)) for i in range(20)]
    assert answers == [True] * 10 + [False] * 10
    assert writer.dropped == 10
    writer.close()
    assert _ids(tmp_path) == [f"r{i}" for i in range(10)]


@contextmanager
def _small_disk(limit_bytes: int) -> Iterator[None]:
    """Files cannot grow past the limit: writes fail half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_counted_and_waited_out(tmp_path: Path) -> None:
    writer = OutcomeLogWriter(tmp_path, flush_interval_s=3600)
    writer.append(_record(0))
    assert writer.flush()
    with _small_disk(1):
        for i in range(1, 50):
            assert writer.append(_record(i))
        assert writer.flush() is False
        assert writer.flush() is False
        assert writer.write_errors == 2
        assert (writer.dropped, writer.queued, writer.overflow.records) == (0, 0, 49)
    assert _ids(tmp_path) == ["r0"]  # nothing half-written is left
    assert writer.flush()  # there is room again
    writer.close()
    assert _ids(tmp_path) == [f"r{i}" for i in range(50)]
    assert len(segments(tmp_path)) == 2


def test_closing_on_a_full_disk_drops(tmp_path: Path) -> None:
    writer = OutcomeLogWriter(tmp_path, flush_interval_s=3600)
    with _small_disk(1):
        writer.append(_record(0))
        writer.close()
    assert (writer.written, writer.dropped, writer.queued) == (0, 1, 0)
    assert segments(tmp_path) == []


def test_directory_deleted_under_a_writer(tmp_path: Path) -> None:
    import shutil

    with OutcomeLogWriter(tmp_path / "log", segment_bytes=2_000, total_bytes=4_000) as writer:
        for i in range(20):
            writer.append(_record(i))
            writer.flush()
            if i == 10:
                shutil.rmtree(tmp_path / "log")
    assert _ids(tmp_path / "log")[-1] == "r19"


def test_records_after_the_deletion_of_an_open_segment_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with OutcomeLogWriter(tmp_path / "log", flush_interval_s=3600) as writer:
        writer.append(_record(0))
        assert writer.flush()
        shutil.rmtree(tmp_path / "log")
        writer.append(_record(1))
        assert writer.flush()
        assert (writer.write_errors, writer.dropped) == (0, 0)
    assert _ids(tmp_path / "log") == ["r1"]
    assert "was deleted; a new segment begins" in caplog.text


def test_wrong_configuration_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be made.*; give a directory"):
        OutcomeLogWriter(tmp_path / "file" / "log")
    with pytest.raises(ConfigError, match="at least twice segment_bytes = 100"):
        OutcomeLogWriter(tmp_path, segment_bytes=100, total_bytes=150)
    with pytest.raises(TraceError, match="no outcome log segments"):
        list(read_outcomes(tmp_path))
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_outcomes(tmp_path / "nowhere.log"))
