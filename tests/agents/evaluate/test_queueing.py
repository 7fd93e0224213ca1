"""How classes fare while the pressure lasts."""

from __future__ import annotations

import numpy as np

from steersman.agents.evaluate.queueing import under_pressure


def test_what_is_served_once_the_pressure_is_gone_has_starved_until_then() -> None:
    arrival_s = np.array([0.0, 5.0, 5.0, 5.0, 6.0, 6.0, 30.0])
    ttft_s = np.array([1.0, 2.0, 90.0, np.nan, 60.0, np.nan, 1.0])
    refused = np.array([False, False, False, True, False, False, False])
    priority = np.array([0, 0, 0, 0, 3, 3, 3])
    urgent, _, _, background = under_pressure(
        arrival_s, ttft_s, refused, priority, start_s=5.0, end_s=20.0, until_s=40.0
    )
    assert (urgent.requests, urgent.begun, urgent.refused) == (3, 1 / 3, 1 / 3)
    assert urgent.longest_wait_s == 35.0, "until arrivals stop"
    assert (background.requests, background.begun, background.longest_wait_s) == (2, 0.0, 34.0)
