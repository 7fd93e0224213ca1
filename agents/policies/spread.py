"""Scaling a quantity over the candidates, as several schedulers do before they weigh them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def min_max(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(value - least) / (greatest - least) over the allowed candidates, (n,); 0 where all are equal.

    What is not finite, or not allowed, counts as the greatest.
    """
    wide = values.astype(np.float64)
    sound = mask & np.isfinite(wide)
    if not sound.any():
        return np.zeros(len(wide))
    least, greatest = float(wide[sound].min()), float(wide[sound].max())
    if not greatest > least:
        return np.where(sound, 0.0, 1.0)
    return np.where(sound, (np.where(sound, wide, least) - least) / (greatest - least), 1.0)
