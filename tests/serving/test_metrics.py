"""How even a load is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.metrics import jain_index, max_over_mean

LOADS = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50).map(np.array)


@given(LOADS)
def test_bounds(load: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    assert 1.0 / len(load) - 1e-9 <= jain_index(load) <= 1.0 + 1e-9
    assert 1.0 - 1e-9 <= max_over_mean(load) <= len(load) + 1e-9


def test_extremes() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain_index(np.array([9.0, 0.0, 0.0])) == pytest.approx(1.0 / 3.0)
    assert max_over_mean(np.array([9.0, 0.0, 0.0])) == pytest.approx(3.0)
    for nothing in (np.zeros(0), np.zeros(4)):
        assert jain_index(nothing) == max_over_mean(nothing) == 1.0
