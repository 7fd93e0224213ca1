"""Scaling a quantity over the candidates, as several schedulers do before they weigh them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def min_max(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(value - least) / (greatest - least) over the allowed candidates, (..., n); 0 where all are equal.

    What is not finite, or not allowed, counts as the greatest.
    """
    wide = values.astype(np.float64)
    sound = mask & np.isfinite(wide)
    least = np.where(sound, wide, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    spread = np.where(sound, wide, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf) - least
    flat = ~(spread > 0.0)
    start = np.where(flat, 0.0, least)
    scaled = (np.where(sound, wide, start) - start) / np.where(flat, 1.0, spread)
    scaled = np.where(flat & sound, 0.0, np.where(sound, scaled, 1.0))
    return np.where(sound.any(axis=-1, keepdims=True), scaled, 0.0)
