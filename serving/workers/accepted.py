"""The configuration that workers have taken up, for those that start later.

The file itself would not do: by the time the supervisor reads it, it may say something else, or nothing
that could be read, and a worker that starts then would differ from those that serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson

from steersman.serving.config import RouterSettings
from steersman.serving.workers.pages import PageRack


class Accepted:
    """In memory that all of them see; made before the workers are forked.

    Args:
        seats: how many workers may live at the same time.
        clock: of the machine.
    """

    def __init__(self, seats: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rack = PageRack(seats)
        self._clock = clock

    def give(self, seat: int, settings: RouterSettings) -> None:
        """The worker in this seat has read these, found nothing wrong, and serves by them."""
        page = {"at_s": self._clock(), "settings": settings.model_dump(mode="json")}
        self._rack.put(seat, orjson.dumps(page))

    def newest(self) -> RouterSettings | None:
        """What was taken up last; None if nothing was since the start."""
        pages = [self._rack.get(seat) for seat in range(self._rack.slots)]
        told = [orjson.loads(page) for page in pages if page]
        if not told:
            return None
        return RouterSettings.model_validate(max(told, key=lambda page: page["at_s"])["settings"])

    def departed(self, seat: int) -> None:
        """For the supervisor: whoever sat there is gone."""
        self._rack.clear(seat)
