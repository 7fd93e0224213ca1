"""Deals out the arms of one canary."""

from __future__ import annotations

from steersman.serving.canary.arm import Arm
from steersman.serving.canary.settings import CanarySettings, Split
from steersman.serving.canary.split import draw, lot_at, unit_of
from steersman.serving.canary.tally import CHALLENGER, CHAMPION, Lot
from steersman.traces.schema import Request


class Dealer:
    """The same request gets the same arm from all routers.

    Args:
        salt: tells this canary from others, which have other arms for the same requests.
    """

    def __init__(self, salt: str = "") -> None:
        self._salt = salt
        self._lot: Lot | None = None
        """The stretch of a switchback that is now."""

    def deal(self, request: Request, share: float, options: CanarySettings, now_unix_s: float) -> Arm:
        """A new request's arm.

        Args:
            share: of the traffic, that is the challenger's.
        """
        if options.split is Split.SWITCHBACK:
            lot = self._lot
            if lot is None or lot.index != int(now_unix_s // options.block_s) or lot.share != share:
                lot = self._lot = lot_at(self._salt, now_unix_s, options.block_s, share)
            counts = now_unix_s % options.block_s >= options.washout_s
            name = CHALLENGER if lot.challenger else CHAMPION
            return Arm(name, request.request_id, lasting=False, lot=lot, counts=counts)
        unit, lasting = unit_of(request, options.split)
        name = CHALLENGER if draw(self._salt, unit) < share else CHAMPION
        return Arm(name, unit, lasting)
