"""The supervisor on its bad days; its good ones are in `tests/cli/test_serve.py`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = """
import pathlib, signal, sys, threading, time
from steersman.serving.workers.supervisor import Supervisor

here = pathlib.Path(sys.argv[1])
# As libraries have: it blocks no signal.
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def work(seat, ready):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    signal.signal(signal.SIGHUP, lambda *_: None)
    while not (here / "may-serve").exists() and not stopped:
        time.sleep(0.01)
    ready()
    while not stopped:
        time.sleep(0.01)
    while (here / "much-to-do").exists():
        (here / "drains").touch()
        time.sleep(0.01)
    return 0


def reload():
    (here / "busy").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    with (here / "reloads").open("a") as file:
        file.write("x")


supervisor = Supervisor(int(sys.argv[2]), work, lambda seat, unasked: None, reload, reload, 10.0)
sys.exit(supervisor.run(lambda: (here / "stopping").touch()))
"""


@contextlib.contextmanager
def supervised(directory: Path, count: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(directory), str(count)])
    try:
        until(lambda: len(workers_of(process)) == count, process)
        yield process
        process.terminate()
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[bytes]) -> set[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    return {int(child) for child in children.split()}


def test_no_signal_is_lost_or_ends_it_while_it_is_busy(tmp_path: Path) -> None:
    (tmp_path / "may-serve").touch()
    with supervised(tmp_path, 1) as process:
        first = workers_of(process)
        process.send_signal(signal.SIGHUP)
        until((tmp_path / "busy").exists, process)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
        (tmp_path / "go").touch()
        reloads = tmp_path / "reloads"
        until(lambda: reloads.exists() and len(reloads.read_text()) == 2, process)
        until(lambda: len(workers_of(process)) == 1 and not workers_of(process) & first, process)
    assert (tmp_path / "stopping").exists()


@pytest.mark.parametrize("place", [0, 1], ids=["the one replaced now", "the next one"])
def test_a_worker_that_dies_while_they_are_replaced_leaves_as_many(tmp_path: Path, place: int) -> None:
    (tmp_path / "may-serve").touch()
    with supervised(tmp_path, 2) as process:
        first = sorted(workers_of(process))
        (tmp_path / "may-serve").unlink()
        process.send_signal(signal.SIGUSR2)
        until(lambda: len(workers_of(process)) == 3, process)
        os.kill(first[place], signal.SIGKILL)
        until(lambda: first[place] not in workers_of(process), process)
        (tmp_path / "may-serve").touch()
        until(lambda: not workers_of(process) & set(first), process)
        until(lambda: len(workers_of(process)) == 2, process)
        second = workers_of(process)
        process.send_signal(signal.SIGUSR2)
        until(lambda: not workers_of(process) & second, process)
        until(lambda: len(workers_of(process)) == 2, process)


def test_all_are_replaced_again_while_the_last_one_of_before_still_drains(tmp_path: Path) -> None:
    (tmp_path / "may-serve").touch()
    (tmp_path / "much-to-do").touch()
    with supervised(tmp_path, 1) as process:
        first = workers_of(process)
        process.send_signal(signal.SIGUSR2)
        until((tmp_path / "drains").exists, process)
        second = workers_of(process) - first
        process.send_signal(signal.SIGUSR2)
        process.send_signal(signal.SIGHUP)  # when the second is heard, so was the first
        (tmp_path / "go").touch()
        until((tmp_path / "reloads").exists, process)
        (tmp_path / "much-to-do").unlink()
        until(lambda: not workers_of(process) & (first | second), process)
        until(lambda: len(workers_of(process)) == 1, process)
