"""Python's garbage collector, set for a process that answers at once.

What the router makes for a request is freed when it ends, without the collector: there are few cycles.
But by default it looks through the newest objects whenever 700 more were made than freed, which a
hundred requests on their way are enough for, and one decision in a hundred waits a millisecond for it.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""New objects that are alive before the newest are looked through; a few megabytes."""


def settle() -> None:
    """Everything is loaded: what there is now is never looked at again, and what comes rarely.

    It is of the whole process: for its `main`, not for libraries.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
