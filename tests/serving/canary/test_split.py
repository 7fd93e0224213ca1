from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.canary.settings import Split
from steersman.serving.canary.split import draw, lot_at, unit_of
from steersman.traces.schema import Request


def request(number: int, session: str | None = None, tenant: str = "") -> Request:
    return Request(f"r{number}", 0.0, 10, session_id=session, tenant=tenant)


@given(st.text(), st.text(), st.floats(0, 1), st.floats(0, 1))
def test_who_has_the_challenger_keeps_it_as_the_share_grows(
    salt: str, unit: str, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    assert 0.0 <= draw(salt, unit) < 1.0
    assert (draw(salt, unit) < small) <= (draw(salt, unit) < large)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_shares_are_met_and_canaries_are_independent(share: float) -> None:
    one = np.array([draw("a", f"session {i}") < share for i in range(20_000)])
    other = np.array([draw("b", f"session {i}") < share for i in range(20_000)])
    assert one.mean() == pytest.approx(share, abs=0.012)
    assert (one & other).mean() == pytest.approx(share**2, abs=0.012)


def test_units() -> None:
    assert unit_of(request(1, "s", "t"), Split.SESSION) == ("t\0s", True)
    assert unit_of(request(1, None, "t"), Split.SESSION) == ("r1", False)
    assert unit_of(request(1, "s", "t"), Split.TENANT) == ("t", True)
    assert unit_of(request(1, "s"), Split.TENANT) == ("r1", False)
    assert unit_of(request(1, "s", "t"), Split.REQUEST) == ("r1", False)


def test_stretches_of_time_are_the_same_for_all_and_go_by_lot() -> None:
    lots = [lot_at("a", 1e9 + 60.0 * i, 60.0, 0.2) for i in range(5000)]
    assert np.mean([lot.challenger for lot in lots]) == pytest.approx(0.2, abs=0.02)
    assert lot_at("a", 1e9 + 30.0, 60.0, 0.2) == lot_at("a", 1e9 + 20.0, 60.0, 0.2)
    assert lots[1].index == lots[0].index + 1
