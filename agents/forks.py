"""Workers that are forks of this process."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from steersman.agents.parallel import Progress, T, Task
from steersman.traces.errors import ConfigError, SteersmanError


class Forks:
    """A crew (`parallel.py`) on this machine: a task may be any function, and begins with all that is
    loaded and compiled here."""

    def work(self, tasks: Sequence[Task[T]], jobs: int, on_progress: Progress) -> list[T]:
        """See `Crew.work`.

        Raises:
            ConfigError: there is no fork here.
            SteersmanError: a process has died.
        """
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ConfigError(f"jobs = {jobs} needs fork, which {sys.platform} has not; give 1")
        results: dict[int, T] = {}
        waiting = iter(range(len(tasks)))
        with _workers(tasks, jobs) as pipes:
            for pipe in pipes:
                pipe.send(next(waiting))
            while len(results) < len(tasks):
                ready = wait(pipes)
                for pipe in [pipe for pipe in pipes if pipe in ready]:
                    kind, index, value = _received(pipe)
                    if kind == "progress":
                        on_progress(value)
                    elif kind == "error":
                        raise value
                    else:
                        results[index] = value
                        following = next(waiting, None)
                        if following is not None:
                            pipe.send(following)
        return [results[index] for index in range(len(tasks))]


@contextmanager
def _workers(tasks: Sequence[Task[Any]], jobs: int) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes: list[ForkProcess] = []
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(tasks, there, [*pipes, here]), daemon=True)
            with warnings.catch_warnings():
                # Of threads here (a progress bar's) a fork knows nothing; the tasks use none of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


def _work(tasks: Sequence[Task[Any]], pipe: Connection, others: Sequence[Connection]) -> None:
    """In a process: what is asked, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks is interrupted, and ends this
    for other in others:
        other.close()
    while True:
        try:
            index = pipe.recv()
        except EOFError:
            return
        try:
            result = tasks[index](lambda done: pipe.send(("progress", 0, done)))
        except Exception as error:  # raised again where it was asked
            pipe.send(("error", index, error))
            return
        pipe.send(("done", index, result))


def _received(pipe: Connection) -> tuple[str, int, Any]:
    try:
        message: tuple[str, int, Any] = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise SteersmanError("a worker process has died (memory?); give fewer --jobs") from None
    return message
