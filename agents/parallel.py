"""Work that is shared out, with the results of one process.

Practice, checks, tuning and evaluation all ask `spread`. Who works is the business of a `Crew`: forks of
this process (`forks.py`), or, inside `with working(crew):`, the machines of a Ray cluster
(`ray_crew.py`). The results are the same whoever works, since a task's randomness is part of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")
Progress = Callable[[float], None]
Task = Callable[[Progress], T]
"""Something to be done, which tells how far it is; its result must be one that can be sent."""


class Crew(Protocol):
    """Workers that can be given tasks.

    A worker begins with a copy of the tasks as they are when they are shared out, takes the next one
    when it is done with one, and keeps what its tasks keep in them for later ones. What a task changes
    elsewhere is lost: only its result comes back, and what it told.
    """

    def work(self, tasks: Sequence[Task[T]], jobs: int, on_progress: Progress) -> list[T]:
        """Do all tasks, and return their results in order.

        Args:
            tasks: at least two.
            jobs: tasks at work at the same time, at least two and at most as many as there are.
            on_progress: told what the tasks tell, in this process; some crews tell it only when a task
                is done.

        Raises:
            ConfigError: this crew cannot work here.
            SteersmanError: a worker is lost.
            Exception: what a task raises; the others are given up.
        """
        ...


_CREW: ContextVar[Crew | None] = ContextVar("crew", default=None)
"""Set only by `working`, for the length of a `with`: `spread` is asked from deep inside of training and
evaluation, whose signatures need not know that there are other machines."""


@contextmanager
def working(crew: Crew | None) -> Iterator[None]:
    """Within this, `spread` gives its tasks to that crew; None: to forks."""
    token = _CREW.set(crew)
    try:
        yield
    finally:
        _CREW.reset(token)


def spread(tasks: Sequence[Task[T]], jobs: int, on_progress: Progress) -> list[T]:
    """Do all tasks, and return their results in order; see `Crew.work`.

    Args:
        jobs: tasks at work at the same time; with 1, or a single task, all is done in this process.
    """
    jobs = min(jobs, len(tasks))
    if jobs <= 1:
        return [task(on_progress) for task in tasks]
    from steersman.agents.forks import Forks

    return (_CREW.get() or Forks()).work(tasks, jobs, on_progress)
