"""Who works for a command that shares its work out: forks of it, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Share the work over a Ray cluster: host:port, 'auto', or 'local' for this machine's own.",
    ),
]


@contextmanager
def crew(ray: str | None, jobs: int) -> Iterator[int]:
    """Within this, work is shared out over the cluster of that address, if one is given.

    Args:
        jobs: as asked for; with 1, a cluster is given as many tasks at once as it has processors.

    Yields:
        How many tasks shall be at work at the same time.
    """
    if ray is None:
        yield jobs
        return
    from steersman.agents.parallel import working
    from steersman.agents.ray_crew import ray_crew

    with ray_crew(ray) as machines, working(machines):
        yield jobs if jobs > 1 else machines.cpus
