"""Who asks: keys of tenants and sessions, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from steersman.traces.trace import Trace

TENANT, SESSION = 0, 1
"""Positions in `Observation.identity`."""


def identity_key(name: str | None) -> int:
    """A name as a positive 63-bit number, 0 for none. Unlike `hash`, the same in every process."""
    if not name:
        return 0
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) or 1


def identity(tenant: str, session_id: str | None) -> NDArray[np.int64]:
    """`Observation.identity` of one request, (2,)."""
    return np.array((identity_key(tenant), identity_key(session_id)), dtype=np.int64)


def trace_identities(trace: Trace) -> NDArray[np.int64]:
    """`identity` of every request of a trace, (n, 2)."""
    return np.stack((_keys(trace.tenants, trace.tenant), _keys(trace.sessions, trace.session)), axis=1)


def _keys(names: Sequence[str], codes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Keys of a coded column; a code of -1 is none."""
    keys = np.array([*map(identity_key, names), 0], dtype=np.int64)
    column: NDArray[np.int64] = keys[codes]
    return column
