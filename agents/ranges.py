"""The feature ranges a learned policy was trained on, and how far an observation lies outside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import REPLICA_FEATURES, REQUEST_FEATURES
from steersman.traces.errors import ArtifactError

Float32 = NDArray[np.float32]

_ANYTHING = np.float32(1e30)
"""Beyond every feature, and small enough that widening it does not overflow."""


@dataclass(frozen=True)
class Ranges:
    """Lowest and highest value of every feature seen in training, in natural units."""

    replica_lower: Float32
    """(len(REPLICA_FEATURES),)"""
    replica_upper: Float32
    request_lower: Float32
    """(len(REQUEST_FEATURES),)"""
    request_upper: Float32
    _bounds: dict[float, tuple[Float32, Float32, Float32, Float32]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Widened bounds by tolerance, made when first needed."""

    def __post_init__(self) -> None:
        """Refuse bounds that cannot be compared with today's features.

        Raises:
            ArtifactError: a wrong number of bounds, a NaN, or a lower bound above its upper bound.
        """
        for kind, lower, upper, names in (
            ("replica", self.replica_lower, self.replica_upper, REPLICA_FEATURES),
            ("request", self.request_lower, self.request_upper, REQUEST_FEATURES),
        ):
            expected = (len(names),)
            if lower.shape != expected or upper.shape != expected:
                raise ArtifactError(
                    f"{kind} ranges have shapes {lower.shape} and {upper.shape}, expected {expected}; "
                    "retrain with this version"
                )
            if not np.all(lower <= upper):
                bad = names[int(np.flatnonzero(~(lower <= upper))[0])]
                raise ArtifactError(
                    f"{kind} range of '{bad}' is empty or not a number; retrain the model"
                )

    @classmethod
    def of(cls, replicas: Float32, requests: Float32) -> Ranges:
        """The ranges of training rows.

        Args:
            replicas: (..., len(REPLICA_FEATURES)), at least one row, of candidates only.
            requests: (..., len(REQUEST_FEATURES)), at least one row.
        """
        rows = replicas.reshape(-1, replicas.shape[-1])
        asked = requests.reshape(-1, requests.shape[-1])
        return cls(rows.min(axis=0), rows.max(axis=0), asked.min(axis=0), asked.max(axis=0))

    def regardless_of(self, request: Sequence[int]) -> Ranges:
        """The same ranges, but for some request features, of which any finite value lies inside.

        Args:
            request: positions in REQUEST_FEATURES.
        """
        lower, upper = self.request_lower.copy(), self.request_upper.copy()
        lower[list(request)], upper[list(request)] = -_ANYTHING, _ANYTHING
        return replace(self, request_lower=lower, request_upper=upper)

    def share_outside(self, rows: Float32, request: Float32, tolerance: float) -> float:
        """Share of the features of the request and of the candidates that lie outside.

        A feature is outside when it is further than `tolerance` of its range's width from that range;
        a value that is not finite is always outside. Width 0 (a feature that never varied in
        training) counts as its magnitude, so that another constant is noticed and rounding is not.

        Args:
            rows: (n, len(REPLICA_FEATURES)), of the candidates that may be chosen.
            request: (len(REQUEST_FEATURES),).
            tolerance: as a share of a range's width.
        """
        *_, lower, upper = self._widened(tolerance)
        # Counted from within, since NaN compares False with everything.
        inside = self._rows_inside(rows, tolerance)
        inside += int(np.count_nonzero((request >= lower) & (request <= upper)))
        return 1.0 - inside / (request.size + rows.size)

    def is_beyond(self, rows: Float32, request: Float32, tolerance: float, most: float) -> bool:
        """Whether `share_outside` is above `most`: quicker where the request makes no difference."""
        if 1.0 - self._rows_inside(rows, tolerance) / (request.size + rows.size) <= most:
            return False
        return self.share_outside(rows, request, tolerance) > most

    def _rows_inside(self, rows: Float32, tolerance: float) -> int:
        lower, upper, *_ = self._widened(tolerance)
        return int(np.count_nonzero((rows >= lower) & (rows <= upper)))

    def _widened(self, tolerance: float) -> tuple[Float32, Float32, Float32, Float32]:
        bounds = self._bounds.get(tolerance)
        if bounds is None:
            bounds = self._bounds[tolerance] = (
                *_widened(self.replica_lower, self.replica_upper, tolerance),
                *_widened(self.request_lower, self.request_upper, tolerance),
            )
        return bounds


def _widened(lower: Float32, upper: Float32, tolerance: float) -> tuple[Float32, Float32]:
    width = upper - lower
    slack = tolerance * np.where(width > 0, width, np.abs(upper)) + 1e-6
    # Infinity must stay outside, so the bounds stay finite.
    largest = np.finfo(np.float32).max
    return (
        np.maximum(lower - slack, -largest).astype(np.float32),
        np.minimum(upper + slack, largest).astype(np.float32),
    )
