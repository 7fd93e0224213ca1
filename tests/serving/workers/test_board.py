"""Every worker sees what the others have in flight."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings
from steersman.serving.pool import MOST_REPLICAS, Fleet
from steersman.serving.workers.board import ACCOUNT, Board, Seat

PROFILE = load_profile("a100-llama-3.1-8b")


def fleet(seat: Seat | None, *names: str) -> Fleet:
    backends = [BackendSettings(url=f"http://{n}", id=n, models=("m",)) for n in names]
    return Fleet(backends, [PROFILE] * len(names), HealthSettings(), block_tokens=16, seat=seat)


def inflight(made: Fleet) -> dict[str, float]:
    pool = made.pools["m"]
    column = made.snapshot(pool, 0.0).state[:, L.INFLIGHT]
    return dict(zip(pool.ids, column.tolist(), strict=True))


def test_accounts_add_up_whatever_the_order_of_the_rows() -> None:
    board = Board(3, MOST_REPLICAS)
    one, two = fleet(Seat(board, 0), "a", "b"), fleet(Seat(board, 2), "c", "b", "a")
    L.on_dispatch(one.state[0], 100, 60, 20)
    L.on_dispatch(two.state[2], 10, 10, 5)
    L.on_dispatch(two.state[1], 10, 10, 5)
    assert inflight(one) == {"a": 2.0, "b": 1.0}
    assert inflight(two) == {"c": 0.0, "b": 1.0, "a": 2.0}
    row = one.snapshot(one.pools["m"], 0.0).state[0]
    assert (row[L.PROMPT_TOKENS], row[L.PREFILL_TOKENS], row[L.OUTPUT_TOKENS]) == (110.0, 70.0, 25.0)
    assert one.state[0, L.INFLIGHT] == 1.0, "its own account stays its own"
    assert one.is_idle(one.replicas[1])


def test_what_is_not_an_account_is_not_added() -> None:
    board = Board(2, MOST_REPLICAS)
    one, two = fleet(Seat(board, 0), "a"), fleet(Seat(board, 1), "a")
    before = one.snapshot(one.pools["m"], 0.0).state
    two.state[0] += 7.0
    after = one.snapshot(one.pools["m"], 0.0).state
    changed = np.flatnonzero((before != after)[0])
    assert set(changed) == set(range(ACCOUNT.start, ACCOUNT.stop))


def test_replicas_come_and_go_and_workers_too() -> None:
    board = Board(2, MOST_REPLICAS)
    one, two = fleet(Seat(board, 0), "a", "b"), fleet(Seat(board, 1), "a", "b")
    L.on_dispatch(two.state[1], 10, 10, 5)
    assert inflight(one) == {"a": 0.0, "b": 1.0}
    L.on_abort(two.state[1], 10, 10, 5, 0, False)
    two.remove(two.replicas[1])
    two.add(BackendSettings(url="http://c", id="c", models=("m",)), PROFILE)
    L.on_dispatch(two.state[1], 10, 10, 5)
    assert inflight(one) == {"a": 0.0, "b": 0.0}, "that row is another one's now"
    L.on_dispatch(two.state[0], 10, 10, 5)
    assert inflight(one)["a"] == 1.0
    board.clear(1)
    assert inflight(one) == {"a": 0.0, "b": 0.0}
    assert not Seat(board, 1).matrix.any()


def test_it_is_shared_with_children() -> None:
    board = Board(2, MOST_REPLICAS)
    one = fleet(Seat(board, 0), "a")
    if (pid := os.fork()) == 0:
        two = fleet(Seat(board, 1), "a")
        L.on_dispatch(two.state[0], 10, 10, 5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert inflight(one) == {"a": 1.0}


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)


@given(st.lists(NAMES, min_size=1, max_size=4), st.data())
def test_everybody_sees_the_sum(workers: list[list[str]], data: st.DataObject) -> None:
    board = Board(len(workers), 16)
    total = dict.fromkeys("abcdef", 0.0)
    made = [_Worker(Seat(board, i), names) for i, names in enumerate(workers)]
    for worker in made:
        for row, name in enumerate(worker.names):
            count = float(data.draw(st.integers(0, 9)))
            worker.seat.matrix[row, L.INFLIGHT] = count
            total[name] += count
    for worker in made:
        own = worker.seat.matrix[: len(worker.names), L.INFLIGHT]
        seen = own + worker.seat.others(tuple(worker.names))[:, 0]
        assert seen.tolist() == pytest.approx([total[name] for name in worker.names])


class _Worker:
    def __init__(self, seat: Seat, names: list[str]) -> None:
        self.seat, self.names = seat, names
        for row, name in enumerate(names):
            seat.name(row, name)
