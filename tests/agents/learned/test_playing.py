from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.agents.learned.playing import DRAIN_S, SLOWEST, play
from steersman.traces.schema import Observation
from tests.agents.learned.scenes import make_practice


def first(seen: Observation) -> NDArray[np.int64]:
    return np.asarray(seen.mask.argmax(axis=-1), dtype=np.int64)


def refuse(seen: Observation) -> NDArray[np.int64]:
    return np.full(len(seen.mask), -1, dtype=np.int64)


def test_the_tail_is_that_of_the_slowest_requests() -> None:
    cluster = make_practice().draw(np.random.default_rng(0))
    played = play([cluster], first, settling=0.0)
    again = cluster.clone()
    while again.next_request() is not None:
        again.dispatch(int(first(again.observe())))
    again.finish(DRAIN_S)
    slowest = np.sort(again.outcomes().ttft_s)[-int(np.ceil(SLOWEST * len(cluster.trace))) :]
    assert played.tail_s[0] == pytest.approx(slowest.mean())
    assert played.cost[0] == pytest.approx(again.cost_accrued)


def test_who_never_gets_a_token_has_waited_to_the_end() -> None:
    cluster = make_practice().draw(np.random.default_rng(0))
    assert play([cluster], refuse, settling=0.0).tail_s[0] == DRAIN_S
    assert cluster.cost_accrued == 0.0, "it stays as it was"
