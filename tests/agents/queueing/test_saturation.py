from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steersman.agents.queueing.saturation import (
    foreseen_tpot_s,
    has_room,
    late_after_s,
    narrowed,
    work_s,
)
from steersman.agents.queueing.settings import QueueSettings
from tests.agents.observations import observation

REQUEST = {"ttft_slo_s": 1.0, "tpot_slo_s": 0.05}
BUSY: dict[str, Any] = {"queue": [10.0, 10.0], "inflight": [10.0, 10.0]}


@pytest.mark.parametrize(
    ("column", "value"),
    [("waiting", 3.0), ("kv_usage", 0.95), ("batch_use", 1.0), ("tpot_s", 0.06), ("ttft_s", 1.5)],
)
def test_what_makes_a_replica_full(column: str, value: float) -> None:
    columns: dict[str, Any] = {column: [value, 0.0]}
    seen = observation(2, request=REQUEST, **BUSY, **columns)
    assert has_room(seen, QueueSettings(), 0).tolist() == [False, True]


def test_where_nothing_of_ours_is_under_way_there_is_room_whatever_the_estimates_say() -> None:
    columns: dict[str, Any] = {"waiting": [5.0, 5.0], "tpot_s": [9.0, 9.0], "ttft_s": [9.0, 9.0]}
    seen = observation(2, request=REQUEST, queue=[7.0, 7.0], inflight=[0.0, 1.0], **columns)
    assert has_room(seen, QueueSettings(), 3).tolist() == [True, False]


def test_what_was_measured_corrects_what_is_predicted() -> None:
    predicted: dict[str, Any] = {"tpot_s": [0.06, 0.06, 0.04], "mean_tpot_s": [0.03, 0.0, 0.09]}
    seen = observation(3, request=REQUEST, queue=[9.0] * 3, inflight=[9.0] * 3, **predicted)
    np.testing.assert_allclose(foreseen_tpot_s(seen), [0.0424, 0.06, 0.06], rtol=1e-3)
    assert has_room(seen, QueueSettings(), 0).tolist() == [True, False, False]


def test_the_mask_holds() -> None:
    seen = observation(2, [False, True], REQUEST)
    assert has_room(seen, QueueSettings(), 0).tolist() == [False, True]


def test_lower_classes_leave_room_to_the_higher() -> None:
    seen = observation(2, request=REQUEST, **BUSY, tpot_s=[0.0425, 0.0442])
    room = [has_room(seen, QueueSettings(), level).tolist() for level in range(4)]
    assert room == [[True, True], [True, False], [False, False], [False, False]]


def test_while_others_have_room_a_request_may_follow_its_prefix() -> None:
    columns: dict[str, Any] = {"uncached_tokens": [100.0, 100.0, 100.0, 900.0]}
    columns |= {"waiting": [0.0, 3.0, 0.0, 0.0]}
    columns |= {"tpot_s": [0.06, 0.06, 0.06, 0.02], "mean_tpot_s": [0.048, 0.048, 0.055, 0.02]}
    seen = observation(4, request=REQUEST, queue=[9.0] * 4, inflight=[9.0] * 4, **columns)
    assert has_room(seen, QueueSettings(), 0).tolist() == [True, False, False, True]
    assert has_room(seen, QueueSettings(prefix_share=0.0), 0).tolist() == [False, False, False, True]
    alone = narrowed(seen, np.array([True, True, True, False]))
    assert not has_room(alone, QueueSettings(), 0).any(), "of a full pool none has room"


def test_narrowed_changes_the_mask_alone() -> None:
    seen = observation(2, request=REQUEST, **BUSY)
    less = narrowed(seen, np.array([False, True]))
    assert less.mask.tolist() == [False, True]
    assert seen.mask.tolist() == [True, True]
    assert less.replicas is seen.replicas


def test_work_is_what_each_of_the_others_loses() -> None:
    seen = observation(3, [True, True, False], queue=[10.0, 0.0, 5.0], inflicted_s=[2.0, 0.4, 90.0])
    assert work_s(seen) == pytest.approx((0.2 + 0.4) / 2)
    assert work_s(observation(1, [False])) == 0.0


def test_lateness_leaves_time_for_the_first_token() -> None:
    seen = observation(3, [True, True, False], REQUEST, ttft_s=[0.7, 0.3, 0.1])
    assert late_after_s(seen) == pytest.approx(0.7)
    swamped = observation(1, request=REQUEST, ttft_s=[8.0])
    assert late_after_s(swamped) == pytest.approx(0.5)
