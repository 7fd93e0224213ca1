"""What a disk refused waits in memory for whoever can write, in order, and whoever has died."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.outcome_log import OutcomeLogWriter, read_outcomes
from steersman.traces.outcome_overflow import Overflow
from steersman.traces.outcome_record import OutcomeRecord

PAGE = 4096


def record(i: int) -> OutcomeRecord:
    return OutcomeRecord(f"r{i}", float(i), i)


def writer(directory: Path, overflow: Overflow) -> OutcomeLogWriter:
    return OutcomeLogWriter(directory, flush_interval_s=3600, overflow=overflow, checked=True)


def refuse(directory: Path) -> None:
    directory.rmdir()
    directory.write_text("in the way")


def ids(directory: Path) -> list[str]:
    return [found.request_id for found in read_outcomes(directory)]


def test_what_a_writer_that_has_ended_could_not_write_another_writes(tmp_path: Path) -> None:
    directory, overflow = tmp_path / "log", Overflow()
    leaving, staying = writer(directory, overflow), writer(directory, overflow)
    refuse(directory)
    for i in range(100):
        assert leaving.append(record(i))
    leaving.close(last=False)
    assert (leaving.dropped, overflow.records) == (0, 100)
    staying.append(record(100))
    assert staying.flush() is False
    assert overflow.records == 101
    directory.unlink()
    assert staying.flush()
    staying.close()
    assert (staying.dropped, staying.written) == (0, 101)
    assert ids(directory) == [f"r{i}" for i in range(101)]


def test_what_a_writer_that_was_killed_could_not_write_another_writes(tmp_path: Path) -> None:
    directory, overflow = tmp_path / "log", Overflow()
    staying = writer(directory, overflow)
    refuse(directory)
    if (pid := os.fork()) == 0:
        killed = writer(directory, overflow)
        for i in range(10):
            killed.append(record(i))
        killed.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert overflow.records == 10
    directory.unlink()
    staying.close()
    assert ids(directory) == [f"r{i}" for i in range(10)]


def test_the_last_one_says_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory, overflow = tmp_path / "log", Overflow()
    first, last = writer(directory, overflow), writer(directory, overflow)
    refuse(directory)
    first.append(record(0))
    first.close(last=False)
    last.append(record(1))
    last.close()
    assert (first.dropped, last.dropped) == (0, 2)
    assert f"2 records of the log in {directory} cannot be written and are lost" in caplog.text


def test_what_has_no_room_is_dropped_and_counted(tmp_path: Path) -> None:
    directory, overflow = tmp_path / "log", Overflow(4000)
    log = OutcomeLogWriter(directory, queue_records=50, flush_interval_s=3600, overflow=overflow)
    refuse(directory)
    for i in range(40):
        assert log.append(record(i))
    assert log.flush() is False  # a chunk has more than fits, and waits where it is
    taken = 40 + sum(log.append(record(40 + i)) for i in range(100))
    assert log.dropped == 140 - taken > 0
    directory.unlink()
    log.close()
    assert ids(directory) == [f"r{i}" for i in range(taken)]


FRAMES = st.lists(st.binary(max_size=3 * PAGE).map(lambda b: b.replace(b"\n", b"") + b"\n"), max_size=3)
STEPS = st.lists(st.one_of(FRAMES, st.integers(0, 5)), max_size=12)


@given(STEPS, st.integers(1, 2 * PAGE), st.integers(1, 6 * PAGE))
def test_nothing_is_lost_or_out_of_order(
    steps: list[list[bytes] | int], piece_bytes: int, most_bytes: int
) -> None:
    """Frames come in, or so many pieces are written before the disk refuses again."""
    overflow = Overflow(most_bytes)
    expected: list[bytes] = []
    written: list[bytes] = []
    for step in steps:
        if isinstance(step, list):
            frames = b"".join(step)
            fits = len(b"".join(expected)) + len(frames) <= most_bytes
            assert overflow.put(frames) is fits
            expected += step if fits else []
        else:
            left = step

            def write(piece: bytes) -> None:
                nonlocal left
                if left == 0:
                    raise OSError
                left -= 1
                assert piece.endswith(b"\n")
                assert len(piece) <= piece_bytes or piece.count(b"\n") == 1
                written.append(piece)

            before = b"".join(expected)
            written.clear()
            try:
                overflow.drain(write, piece_bytes)
            except OSError:
                assert left == 0
            done = b"".join(written)
            assert before.startswith(done)
            rest = before[len(done) :]
            expected = [frame + b"\n" for frame in rest.split(b"\n")[:-1]]
        assert overflow.records == len(expected)
        assert overflow.size_bytes == len(b"".join(expected))
    overflow.close()
