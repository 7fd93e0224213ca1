"""Keeping workers alive: forked from one process that does nothing else.

::

    SIGTERM, SIGINT   every worker drains and ends, then the supervisor does
    SIGHUP            every worker reads the configuration again
    SIGUSR1           the workers have read it by themselves: those started from now on have the same
    SIGUSR2           one worker after the other is replaced: the new one serves, the old one drains

A worker that ends unasked is started again, at once, or after a pause that grows while it keeps ending
soon. All workers take connections from one socket that the supervisor holds open, so none that waits to
be taken is lost with a worker.

Signals have handlers that take note of them. To block them and wait for them would not do: libraries
have threads that block none, and a signal that comes while the supervisor is busy goes to one of these,
which by default ends the process.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

logger = logging.getLogger("steersman.serving")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
TICK_S = 0.1
SOON_S = 5.0
"""A worker that ends earlier than this is not started again at once."""
LONGEST_PAUSE_S = 10.0


@dataclass
class Worker:
    """One child."""

    pid: int
    seat: int
    ready_fd: int
    started_s: float
    leaving: bool = False

    def is_ready(self) -> bool:
        """Whether it has said that it serves."""
        try:
            return os.read(self.ready_fd, 1) == b"r"
        except BlockingIOError:
            return False


class Supervisor:
    """Runs until it is told to stop.

    Args:
        count: workers.
        work: what a worker does, in the child: it gets its seat (0 to `count`) and what to call when it
            serves, and returns its exit status.
        gone: told of the seat of every worker that has ended, and whether unasked.
        reload: called at SIGHUP, before the workers are told.
        reloaded: called at SIGUSR1.
        patience_s: how long a worker may take to end.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int, Callable[[], None]], int],
        gone: Callable[[int, bool], None],
        reload: Callable[[], None],
        reloaded: Callable[[], None],
        patience_s: float,
    ) -> None:
        self._count = count
        self._work = work
        self._gone = gone
        self._reload = reload
        self._reloaded = reloaded
        self._patience_s = patience_s
        self._workers: dict[int, Worker] = {}
        self._due_s: list[float] = []
        """When workers that have ended are to be started again."""
        self._soon = 0
        """How many have ended soon, one after the other."""
        self._to_replace: list[int] = []
        self._incoming: Worker | None = None
        self._kill_at_s: float | None = None
        self._heard: deque[signal.Signals] = deque()

    def run(self, on_stop: Callable[[], None]) -> int:
        """Until all have ended; returns the exit status.

        Args:
            on_stop: called once, when it is told to stop.
        """
        self._listen()
        for _ in range(self._count):
            self._start()
        while self._workers or self._kill_at_s is None:
            self._wait()
            while self._heard:
                self._take(self._heard.popleft(), on_stop)
            self._reap()
            self._go_on(time.monotonic())
        self._stop_listening()
        return 0

    def _listen(self) -> None:
        """From now on signals are noted, and wake it up, whichever thread gets them."""
        self._ear, self._mouth = os.pipe()
        for fd in (self._ear, self._mouth):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, self._hear) for number in SIGNALS}

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard.append(signal.Signals(number))

    def _wait(self) -> None:
        """For a signal, or a tick."""
        if not self._heard and select.select([self._ear], [], [], TICK_S)[0]:
            os.read(self._ear, 4096)

    def _stop_listening(self) -> None:
        """Signals mean again what they did."""
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(-1)
        os.close(self._ear)
        os.close(self._mouth)

    def _take(self, told: signal.Signals, on_stop: Callable[[], None]) -> None:
        if told in {signal.SIGTERM, signal.SIGINT}:
            if self._kill_at_s is None:
                on_stop()
            self._kill_at_s = time.monotonic() + self._patience_s
            self._tell_all(told)
        elif told is signal.SIGHUP:
            self._reload()
            self._tell_all(told)
        elif told is signal.SIGUSR1:
            self._reloaded()
        elif told is signal.SIGUSR2 and not self._to_replace and self._incoming is None:
            # One that leaves is replaced already; it may drain for long.
            self._to_replace = [pid for pid, worker in self._workers.items() if not worker.leaving]
            logger.warning("replacing %d workers one after the other", len(self._to_replace))

    def _tell_all(self, told: signal.Signals) -> None:
        for pid in self._workers:
            os.kill(pid, told)

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker = self._workers.pop(pid, None)
            if worker is None:
                continue
            os.close(worker.ready_fd)
            unasked = not worker.leaving and self._kill_at_s is None
            self._gone(worker.seat, unasked)
            if worker is self._incoming:
                self._incoming, self._to_replace = None, []
            elif unasked and not self._is_replaced(pid):
                self._start_again(worker, os.waitstatus_to_exitcode(status))

    def _is_replaced(self, pid: int) -> bool:
        """Whether the one that has ended has a successor already. Whoever comes in its place need not be
        replaced."""
        if pid not in self._to_replace:
            return False
        succeeds = self._incoming is not None and pid == self._to_replace[0]
        self._to_replace.remove(pid)
        if succeeds:
            self._incoming = None
        return succeeds

    def _start_again(self, worker: Worker, code: int) -> None:
        now_s = time.monotonic()
        self._soon = self._soon + 1 if now_s - worker.started_s < SOON_S else 0
        pause_s = min(0.25 * 2.0 ** min(self._soon, 16), LONGEST_PAUSE_S) if self._soon else 0.0
        self._due_s.append(now_s + pause_s)
        logger.error("worker %d ended with status %d; started again", worker.pid, code)

    def _go_on(self, now_s: float) -> None:
        if self._kill_at_s is not None:
            if now_s >= self._kill_at_s:
                self._tell_all(signal.SIGKILL)
            return
        while self._due_s and min(self._due_s) <= now_s:
            self._due_s.remove(min(self._due_s))
            self._start()
        if any(worker.leaving for worker in self._workers.values()):
            return
        if self._incoming is not None:
            if self._incoming.is_ready():
                self._incoming = None
                old = self._workers[self._to_replace.pop(0)]
                old.leaving = True
                os.kill(old.pid, signal.SIGTERM)
        elif self._to_replace:
            self._incoming = self._start()

    def _start(self) -> Worker:
        taken = {worker.seat for worker in self._workers.values()}
        seat = next(seat for seat in range(self._count + 1) if seat not in taken)
        ready_fd, write_fd = os.pipe()
        os.set_blocking(ready_fd, False)
        # What the child is told before it is ready to hear waits for that.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._be_worker(seat, ready_fd, write_fd, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_fd)
        worker = self._workers[pid] = Worker(pid, seat, ready_fd, time.monotonic())
        return worker

    def _be_worker(
        self, seat: int, ready_fd: int, write_fd: int, mask: set[int | signal.Signals]
    ) -> None:
        """In the child; never returns."""
        code = 1
        try:
            for fd in (ready_fd, *(worker.ready_fd for worker in self._workers.values())):
                os.close(fd)
            self._stop_listening()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

            def ready() -> None:
                os.write(write_fd, b"r")

            code = self._work(seat, ready)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
