"""The retry budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.config import RetrySettings
from steersman.serving.retries import RetryBudget


def test_it_starts_full_and_fills_slowly() -> None:
    budget = RetryBudget(RetrySettings(budget_ratio=0.25, budget_burst=2))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(3):
        budget.request()
    assert not budget.spend()
    budget.request()
    assert budget.spend()


@given(st.lists(st.booleans(), max_size=200))
def test_retries_never_exceed_burst_and_share(events: list[bool]) -> None:
    budget = RetryBudget(RetrySettings(budget_ratio=0.2, budget_burst=5))
    requests = spent = 0
    for is_request in events:
        if is_request:
            budget.request()
            requests += 1
        else:
            spent += budget.spend()
        assert spent <= 5 + 0.2 * requests + 1e-9
