"""The arm of a request, and what the router asks of whoever deals them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from steersman.serving.canary.tally import CHALLENGER, Lot
from steersman.traces.schema import Request

if TYPE_CHECKING:
    from steersman.serving.router import Deciders


@dataclass(slots=True)
class Arm:
    """One request's."""

    name: str
    """`champion` or `challenger`."""
    unit: str
    """What was given to the arm as a whole."""
    lasting: bool
    """Whether more than this request belongs to the unit."""
    lot: Lot | None = None
    """Of a switchback."""
    counts: bool = True
    faulty: bool = False
    """The challenger's code failed on it, and the champion decided."""

    @property
    def is_challenger(self) -> bool:
        """Whether the challenger is to decide."""
        return self.name == CHALLENGER


class Arms(Protocol):
    """Deals out arms. Microseconds, and nothing while there is no canary."""

    def assign(self, request: Request) -> Arm | None:
        """A new request's arm; None: there is no canary."""
        ...

    def deciders(self, arm: Arm | None) -> Deciders:
        """Who decides for it now: after a rollback the champion for everybody."""
        ...

    def broke(self, arm: Arm, error: Exception) -> None:
        """The challenger's code failed; the champion decides instead."""
        ...
