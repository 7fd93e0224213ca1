"""The guard: a learned policy never serves without it (SPEC B3).

`Guard` is itself a `Policy`. For every decision it looks at the inputs, asks the learned policy, and
looks at the answer; on any doubt another policy decides in its place, and the reason is counted. When
doubts repeat it latches: the fallback serves alone until the learned policy has been sound for a while.
It works with no model at all.
"""

from steersman.agents.guard.guard import Clock, Guard
from steersman.agents.guard.latch import LatchState
from steersman.agents.guard.settings import FallbackReason, GuardSettings

__all__ = ["Clock", "FallbackReason", "Guard", "GuardSettings", "LatchState"]
