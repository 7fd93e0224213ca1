"""Control loops: small objects that are told the time, and the one function that runs them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("steersman.serving")

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""

RECOVERY_S = 1.0
"""Pause after a step that failed by a fault of ours."""


class ControlLoop(Protocol):
    """Something the router does beside the requests, again and again.

    A step never blocks the event loop, bounds its own waiting, and treats what can go wrong outside
    (a replica that is down, a file that is corrupt) as data. Tests call `step` with times of their own.
    """

    @property
    def name(self) -> str:
        """For logs."""
        ...

    async def step(self, now_s: float) -> float:
        """Do the work that is due at `now_s`; returns the pause until the next step, in seconds, or
        infinity if there is to be none."""
        ...


async def step_safely(loop: ControlLoop, clock: Clock) -> float:
    """One step; a fault of ours is logged in one line and ends nothing."""
    try:
        return await loop.step(clock())
    except Exception as error:
        logger.error("%s: step failed: %s: %s", loop.name, type(error).__name__, error)
        return RECOVERY_S


async def run_loop(loop: ControlLoop, clock: Clock, pause_s: float) -> None:
    """Pause and step until cancelled, or until a step asks for an infinite pause."""
    while pause_s < math.inf:
        await asyncio.sleep(max(pause_s, 0.001))
        pause_s = await step_safely(loop, clock)
