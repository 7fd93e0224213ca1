"""Which replicas drain, as all workers are told."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.workers.orders import Orders

SEATS = 3


def orders() -> Orders:
    ticks = count(1)
    return Orders(SEATS, lambda: float(next(ticks)))


EVENTS = st.lists(
    st.tuples(
        st.integers(0, SEATS - 1), st.sampled_from(["b0", "b1", "ü"]), st.booleans(), st.booleans()
    )
)


@given(EVENTS)
def test_the_newest_counts_whoever_was_told_and_whoever_died(
    events: list[tuple[int, str, bool, bool]],
) -> None:
    told, expected = orders(), {}
    for seat, replica, drain, dies in events:
        told.give(seat, replica, drain=drain)
        expected[replica] = drain
        if dies:
            told.departed(seat)
    assert {replica: order.drain for replica, order in told.all().items()} == expected


def test_there_are_none_at_first() -> None:
    assert orders().all() == {}
