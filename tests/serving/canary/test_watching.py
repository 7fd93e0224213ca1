from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from steersman.serving.canary.tally import CHALLENGER, CHAMPION, E2E, ERRORS, MISSED, TTFT, Lot
from steersman.serving.canary.watching import Watched, Watching
from steersman.traces.schema import Outcome, Status

LIMITS = {TTFT: 1.0, E2E: 5.0}
NAN = math.nan


def exchange(arrival_s: float = 0.0, *, stream: bool = True, http_status: int = 200) -> Any:
    """What of an exchange is looked at."""
    return SimpleNamespace(
        intake=SimpleNamespace(arrival_s=arrival_s),
        prepared=SimpleNamespace(request=SimpleNamespace(stream=stream)),
        first_token_s=None,
        http_status=http_status,
    )


def outcome(status: Status = Status.OK, ttft_s: float = 0.5, e2e_s: float = 2.0) -> Outcome:
    return Outcome("r", status, 0, 10, 10, 0, 0.0, ttft_s, 0.01, e2e_s)


def begin(watching: Watching, unit: str = "s", *, lasting: bool = True, **more: Any) -> Any:
    made = exchange(**more)
    watching.begin(Watched(made, CHALLENGER, unit, lasting, None, counts=True))
    return made


def counted(watching: Watching, guard: str) -> list[int]:
    return watching.tally.counts[CHALLENGER][guard]


def test_an_outcome_is_told_once_to_every_guard() -> None:
    watching = Watching()
    made = begin(watching)
    assert watching.end(made, outcome(ttft_s=1.5), LIMITS, faulty=False) == (CHALLENGER, False)
    assert watching.end(made, outcome(), LIMITS, faulty=False) is None
    assert [counted(watching, guard) for guard in (ERRORS, TTFT, E2E)] == [[1, 0], [1, 1], [1, 0]]
    assert watching.tally.counts[CHAMPION][ERRORS] == [0, 0]
    assert sum(watching.tally.latencies[CHALLENGER][TTFT].values()) == 1


def test_whoever_is_late_counts_before_it_ends_and_only_once() -> None:
    watching = Watching()
    made = begin(watching)
    watching.look(0.9, LIMITS)
    assert counted(watching, TTFT) == [0, 0]
    watching.look(1.1, LIMITS)
    watching.look(1.2, LIMITS)
    assert counted(watching, TTFT) == [1, 1]
    made.first_token_s = 1.3
    watching.look(6.0, LIMITS)
    assert counted(watching, E2E) == [1, 1]
    watching.end(made, outcome(ttft_s=1.3, e2e_s=6.5), LIMITS, faulty=False)
    assert (counted(watching, TTFT), counted(watching, E2E)) == ([1, 1], [1, 1])
    assert sum(watching.tally.latencies[CHALLENGER][E2E].values()) == 1, "for the figures it counts"


def test_a_session_fares_badly_once_a_request_of_its_own_each_time() -> None:
    watching = Watching()
    for _ in range(5):
        watching.end(begin(watching), outcome(Status.FAILED), LIMITS, faulty=False)
    assert counted(watching, ERRORS) == [1, 1]
    assert watching.tally.seen[CHALLENGER][ERRORS] == [5, 5]
    for i in range(5):
        made = begin(watching, f"r{i}", lasting=False)
        watching.end(made, outcome(Status.FAILED), LIMITS, faulty=False)
    assert counted(watching, ERRORS) == [6, 6]


@pytest.mark.parametrize(
    ("status", "http_status", "told"),
    [
        (Status.OK, 200, False),
        (Status.FAILED, 200, True),
        (Status.REJECTED, 0, True),
        (Status.REJECTED, 503, True),
        (Status.REJECTED, 400, None),
        (Status.CANCELLED, 200, None),
    ],
)
def test_whose_fault_it_is(status: Status, http_status: int, told: bool | None) -> None:
    watching = Watching()
    made = begin(watching, http_status=http_status)
    ended = watching.end(made, outcome(status, NAN, NAN), LIMITS, faulty=False)
    assert ended == (None if told is None else (CHALLENGER, told))


def test_code_that_failed_is_a_failure_though_the_client_has_its_answer() -> None:
    watching = Watching()
    assert watching.end(begin(watching), outcome(), LIMITS, faulty=True) == (CHALLENGER, True)
    assert counted(watching, ERRORS) == [1, 1]


def test_an_objective_that_is_missed_counts_as_soon_as_it_is() -> None:
    watching = Watching()
    made = exchange()
    watching.begin(
        Watched(made, CHALLENGER, "r", False, None, counts=True, ttft_slo_s=1.0, tpot_slo_s=0.05)
    )
    watching.look(1.1, {})
    watching.look(1.2, {})
    watching.end(made, outcome(ttft_s=1.3), {}, faulty=False)
    assert counted(watching, MISSED) == watching.tally.seen[CHALLENGER][MISSED] == [1, 1]


@pytest.mark.parametrize(
    ("told", "missed"),
    [
        ({"ttft_s": 0.5}, [1, 0]),
        ({"ttft_s": 1.5}, [1, 1]),
        ({"ttft_s": NAN}, [0, 0]),  # in one piece: nobody knows
        ({"status": Status.FAILED, "ttft_s": NAN}, [1, 1]),
        ({"status": Status.CANCELLED, "ttft_s": 1.5}, [0, 0]),
    ],
)
def test_whether_objectives_were_met_is_told_at_the_end(told: Any, missed: list[int]) -> None:
    watching = Watching()
    made = exchange()
    watching.begin(
        Watched(made, CHALLENGER, "r", False, None, counts=True, ttft_slo_s=1.0, tpot_slo_s=NAN)
    )
    watching.end(made, outcome(**told), {}, faulty=False)
    assert counted(watching, MISSED) == missed


def test_without_limits_nothing_is_late() -> None:
    watching = Watching()
    made = begin(watching)
    watching.look(1e6, {})
    watching.end(made, outcome(), {}, faulty=False)
    assert counted(watching, TTFT) == [0, 0]


def test_of_a_switchback_stretches_are_counted_and_the_washout_is_not() -> None:
    watching, lot = Watching(), Lot(7, 0.5, challenger=True)
    for counts in (True, False):
        made = exchange()
        watching.begin(Watched(made, CHALLENGER, "r", lasting=False, lot=lot, counts=counts))
        watching.end(made, outcome(), LIMITS, faulty=False)
    assert watching.tally.blocks[lot][ERRORS] == [1, 0]
    assert counted(watching, ERRORS) == [0, 0]
    assert watching.tally.seen[CHALLENGER][ERRORS] == [2, 0]


def test_tallies_add_up_and_are_taken_once() -> None:
    watching, lot = Watching(), Lot(1, 0.5, challenger=False)
    watching.end(begin(watching), outcome(), LIMITS, faulty=False)
    first = watching.take()
    made = exchange()
    watching.begin(Watched(made, CHAMPION, "x", lasting=False, lot=lot, counts=True))
    watching.end(made, outcome(Status.FAILED), LIMITS, faulty=False)
    first.add(watching.take())
    assert first.seen[CHALLENGER][ERRORS] == [1, 0]
    assert first.seen[CHAMPION][ERRORS] == [1, 1]
    assert first.blocks[lot][ERRORS] == [1, 1]
    assert watching.take().seen[CHALLENGER][ERRORS] == [0, 0]
