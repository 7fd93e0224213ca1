"""A router whose outcome log can be put aside: SIGUSR1 takes the recorder's log away, SIGUSR2 gives it
back. Two processes that are alike differ by more than a log costs; one process does not.

::

    python benchmarks/outcome_log_router.py serve --config FILE
"""

from __future__ import annotations

import signal
from typing import Any

from steersman.cli import app
from steersman.serving.recorder import Recorder


def main() -> None:
    """As `steersman`, with the signals."""
    recorders: list[tuple[Recorder, Any]] = []
    prepare = Recorder.__init__

    def remember(recorder: Recorder, *parts: Any, **more: Any) -> None:
        prepare(recorder, *parts, **more)
        recorders.append((recorder, recorder._log))

    def switch(number: int, _: object) -> None:
        for recorder, log in recorders:
            recorder._log = log if number == signal.SIGUSR2 else None

    Recorder.__init__ = remember  # type: ignore[assignment, method-assign]
    signal.signal(signal.SIGUSR1, switch)
    signal.signal(signal.SIGUSR2, switch)
    app()


if __name__ == "__main__":
    main()
