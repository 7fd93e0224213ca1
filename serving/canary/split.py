"""Which arm a request belongs to: the same for all routers. As the share grows, those who have the
challenger keep it."""

from __future__ import annotations

from hashlib import blake2b

from steersman.serving.canary.settings import Split
from steersman.serving.canary.tally import Lot
from steersman.traces.schema import Request

_SCALE = 2.0**-64


def unit_of(request: Request, split: Split) -> tuple[str, bool]:
    """What is given to an arm as a whole, and whether more than this request belongs to it."""
    if split is Split.SESSION and request.session_id:
        return f"{request.tenant}\0{request.session_id}", True
    if split is Split.TENANT and request.tenant:
        return request.tenant, True
    return request.request_id, False


def draw(salt: str, unit: str) -> float:
    """Evenly from [0, 1), always the same for a unit; another one with another salt."""
    text = f"{salt}\0{unit}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") * _SCALE


def lot_at(salt: str, unix_s: float, block_s: float, share: float) -> Lot:
    """The stretch of time at a moment, and whose it is."""
    index = int(unix_s // block_s)
    return Lot(index, share, draw(salt, f"block {index}") < share)
