"""What `chaos.py` does to the processes: each incident hurts, lasts, and is over.

At most two of the four backends are hurt at any time.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos_stage import Stage

Incident = Callable[[Stage, int, float], Awaitable[None]]
"""(stage, backend, how long in seconds)."""


async def killed(stage: Stage, index: int, last_s: float) -> None:
    """A crash; started again after a while."""
    await asyncio.to_thread(stage.signal_backend, index, signal.SIGKILL)
    await asyncio.sleep(last_s)
    await asyncio.to_thread(stage.start_backend, index)


async def frozen(stage: Stage, index: int, last_s: float) -> None:
    """It takes connections and does nothing."""
    stage.signal_backend(index, signal.SIGSTOP)
    await asyncio.sleep(last_s)
    stage.signal_backend(index, signal.SIGCONT)


def faulty(**faults: object) -> Incident:
    """A fault that the emulated backend knows."""

    async def incident(stage: Stage, index: int, last_s: float) -> None:
        await stage.faults(index, **faults)
        await asyncio.sleep(last_s)
        await stage.faults(index)

    return incident


async def disk_full(stage: Stage, _index: int, last_s: float) -> None:
    """Not a byte left for the outcome log."""
    ballast = await stage.fill_disk()
    await asyncio.sleep(last_s)
    ballast.unlink()


async def reloaded(stage: Stage, index: int, last_s: float) -> None:
    """The configuration loses a backend, is broken, and is as it was."""
    for change in ({"without": index}, {"broken": True}, {}):
        stage.configure(**change)
        stage.signal_router(signal.SIGHUP)
        await asyncio.sleep(last_s / 3)


async def replaced(stage: Stage, _index: int, last_s: float) -> None:
    """Every worker of the router makes way for a new one."""
    stage.signal_router(signal.SIGUSR2)
    await asyncio.sleep(last_s)


BACKENDS: dict[str, Incident] = {
    "killed": killed,
    "frozen": frozen,
    "slowed": faulty(slowdown=25.0),
    "failing": faulty(fail_rate=0.5),
    "rubbish": faulty(rubbish_rate=0.5),
    "breaking": faulty(break_after_tokens=6),
    "lying-idle": faulty(metrics="idle"),
    "lying-rubbish": faulty(metrics="rubbish"),
    "unhealthy": faulty(unhealthy=True),
}
ROUTER: dict[str, Incident] = {"reloaded": reloaded, "workers-replaced": replaced}
DISK: dict[str, Incident] = {"disk-full": disk_full}


@dataclass(frozen=True)
class Span:
    """One incident that happened."""

    name: str
    backend: int
    began_s: float
    ended_s: float


@dataclass
class Plan:
    """Two lanes of incidents, one after the other, on backends of their own each.

    Args:
        incidents: by name.
        last_s: range of how long one lasts.
        pause_s: range of the pause after it.
        seed: of their order.
    """

    incidents: dict[str, Incident]
    last_s: tuple[float, float]
    pause_s: tuple[float, float]
    seed: int
    began_s: float = 0.0
    spans: list[Span] = field(default_factory=list)

    async def run(self, stage: Stage, until_s: float, tell: Callable[[str], None]) -> None:
        """Until a time of the monotonic clock, all of them about equally often."""
        self.began_s = time.monotonic()
        lanes = [((0, 1), random.Random(self.seed)), ((2, 3), random.Random(self.seed + 1))]
        names = list(self.incidents)
        halves = (names[::2], names[1::2])

        async def lane(number: int) -> None:
            backends, rng = lanes[number]
            own = halves[number]
            while True:
                rng.shuffle(own)
                for name in own:
                    last_s = rng.uniform(*self.last_s)
                    if time.monotonic() + last_s > until_s:
                        return
                    index = rng.choice(backends)
                    tell(f"{name} r{index} for {last_s:.1f} s")
                    began_s = time.monotonic()
                    await self.incidents[name](stage, index, last_s)
                    self.spans.append(Span(name, index, began_s, time.monotonic()))
                    await asyncio.sleep(rng.uniform(*self.pause_s))
                # What hurt the backends of one lane hurts those of the other next.
                own = halves[1 - number] if own is halves[number] else halves[number]

        await asyncio.gather(lane(0), lane(1))

    def counts(self) -> dict[str, int]:
        """How often each incident happened."""
        return {name: sum(span.name == name for span in self.spans) for name in self.incidents}

    def told(self, began_s: float, ended_s: float) -> str:
        """When something was, and what went on meanwhile; times of the monotonic clock."""
        during = [s for s in self.spans if s.began_s <= ended_s and began_s <= s.ended_s]
        names = ", ".join(f"{span.name} r{span.backend}" for span in during) or "nothing"
        return f"from {began_s - self.began_s:.1f} to {ended_s - self.began_s:.1f} s, with {names}"
