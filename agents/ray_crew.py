"""Workers on the machines of a Ray cluster.

Each process of the cluster loads the tasks once, however many of them it does: they are put into Ray's
object store as one object. What a task tells is told here when it is done.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from steersman import __version__
from steersman.agents.parallel import Progress, T, Task
from steersman.env import transport  # noqa: F401  (clusters in tasks can be sent from here on)
from steersman.traces.errors import ConfigError, SteersmanError

REACH_S = 5.0
LOCAL = "local"
"""Address that starts a cluster of this machine alone, for the length of the work."""


class RayCrew:
    """A crew (`parallel.py`) on a Ray cluster that this process has joined; see `ray_crew`."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._do = ray.remote(num_cpus=1, max_retries=2)(_do)

    @property
    def cpus(self) -> int:
        """Processors of the whole cluster: tasks that can be at work at the same time."""
        return max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def work(self, tasks: Sequence[Task[T]], jobs: int, on_progress: Progress) -> list[T]:
        """See `Crew.work`. A task whose machine is lost is done again elsewhere, twice at most.

        Raises:
            SteersmanError: a worker has died once too often, or a task cannot be sent.
        """
        ray = self._ray
        try:
            # As bytes: what Ray itself unpacks, it shares between processes, and nobody may write to it.
            sent = ray.put(ray.cloudpickle.dumps(list(tasks)))
        except (TypeError, pickle.PicklingError) as error:
            reason = str(error).strip().splitlines()[0]
            raise SteersmanError(f"a task cannot be sent to the Ray cluster: {reason}") from None
        results: dict[int, T] = {}
        at_work = {self._do.remote([sent], index): index for index in range(jobs)}
        following = jobs
        try:
            while at_work:
                done, _ = ray.wait(list(at_work))
                for reference in done:
                    index = at_work.pop(reference)
                    answer, told = self._result(reference)
                    results[index] = pickle.loads(answer)  # noqa: S301 (of our own worker)
                    on_progress(told)
                    if following < len(tasks):
                        at_work[self._do.remote([sent], following)] = following
                        following += 1
        finally:
            for reference in at_work:
                ray.cancel(reference, force=True)
        return [results[index] for index in range(len(tasks))]

    def _result(self, reference: Any) -> Any:
        ray = self._ray
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise SteersmanError(f"a worker of the Ray cluster was lost (memory?): {reason}") from None


@contextmanager
def ray_crew(address: str) -> Iterator[RayCrew]:
    """Join a Ray cluster, and leave it at the end.

    Args:
        address: `host:port` of a cluster that this machine is part of, `auto` for the one that runs
            here, or `local` for a new one of this machine alone.

    Raises:
        ConfigError: there is no such cluster, or its machines have another Steersman.
        ModuleNotFoundError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    import ray

    _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"include_dashboard": False, "address": LOCAL}
    else:
        options |= {"address": address}
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError, OSError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _not_there(address, reason) from None
    try:
        theirs = ray.get(ray.remote(num_cpus=1)(_version).remote())
        if theirs != __version__:
            raise ConfigError(
                f"--ray {address}: its machines have Steersman {theirs}, this one {__version__}; "
                "install the same"
            )
        yield RayCrew(ray)
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Whether anybody listens at `host:port`: Ray itself tries for minutes.

    Raises:
        ConfigError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise _not_there(address, str(error)) from None


def _not_there(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--ray {address}: no Ray cluster can be joined there ({reason}); start one with "
        "'ray start --head', or give 'local'"
    )


def _version() -> str:
    """Of the Steersman on a machine of the cluster."""
    return __version__


def _do(sent: list[Any], index: int) -> tuple[bytes, float]:
    """On a machine of the cluster: do a task; its result, pickled, and the sum of what it told."""
    told: list[float] = []
    result = _tasks(_Key(sent[0]))[index](told.append)
    return pickle.dumps(result), sum(told)


class _Key:
    """A reference to the tasks; equal when it is to the same ones."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self._name = reference.hex()

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._name == self._name


@lru_cache(maxsize=1)
def _tasks(key: _Key) -> list[Callable[[Progress], Any]]:
    """The tasks, loaded once in this process."""
    import ray

    tasks: list[Callable[[Progress], Any]] = pickle.loads(ray.get(key.reference))  # noqa: S301
    return tasks
