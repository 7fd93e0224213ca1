from __future__ import annotations

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from tests.env.worlds import play, request, small_profile, specs, trace_of


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 17])
def test_any_number_of_replicas_is_looked_at(count: int) -> None:
    """Trees have a power of two of leaves: those that no replica has must never be due."""
    replicas = specs(*(small_profile() for _ in range(count)))
    trace = trace_of(*(request(i, 0.01 * i, 20 + i % 50, 2 + i % 9) for i in range(5 * count)))
    fast, stepped = Cluster(replicas, trace, seed=1), Cluster(replicas, trace, seed=1, stepped=True)
    due = fast.memory.due
    leaves = due.shape[1] // 2
    assert np.isposinf(due[:, leaves + count :]).all()
    for node in range(1, leaves):
        assert (due[:, node] == due[:, 2 * node : 2 * node + 2].min(axis=1)).all()
    play(fast)
    play(stepped)
    assert fast.outcomes().ok.all()
    np.testing.assert_allclose(fast.outcomes().e2e_s, stepped.outcomes().e2e_s, rtol=1e-9)
