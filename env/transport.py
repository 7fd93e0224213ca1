"""Clusters that are sent to other machines.

A cluster's memory is one buffer whose header holds addresses of this process: of the trace, of the
tables its replicas read, of machine code. It is sent as the buffer and what they point at, and the
addresses are written anew where it arrives. Importing this module tells `pickle` so, and `cloudpickle`
(Ray's) with it; nothing is ever stored this way.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env.memory import Memory
from steersman.env.static_trace import StaticTrace

_Parts = tuple[NDArray[np.uint8], Any, StaticTrace, Any]


def _reduced(memory: Memory) -> tuple[Any, _Parts]:
    return _arrived, (memory.buffer, memory._places, memory.trace, memory.reads)


def _arrived(buffer: NDArray[np.uint8], places: Any, trace: StaticTrace, reads: Any) -> Memory:
    memory = Memory.__new__(Memory)
    memory.trace, memory.reads, memory._places = trace, reads, places
    memory._adopt(buffer)
    own = memory.copy()  # aligned to cache lines, and writable
    own.use_trace(trace)
    return own


copyreg.pickle(Memory, _reduced)
