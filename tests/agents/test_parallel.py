from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from steersman.agents.parallel import spread
from steersman.traces.errors import ConfigError, SteersmanError


def task(number: int) -> Callable[[Callable[[float], None]], tuple[int, int]]:
    def work(tell: Callable[[float], None]) -> tuple[int, int]:
        tell(0.5)
        tell(0.5)
        return number * number, os.getpid()

    return work


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_results_come_in_order_whoever_worked(jobs: int) -> None:
    told: list[float] = []
    results = spread([task(number) for number in range(6)], jobs, told.append)
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    assert sum(told) == 6.0
    assert all((pid == os.getpid()) is (jobs == 1) for _, pid in results)


def test_nothing_to_do_is_done() -> None:
    assert spread([], 4, lambda done: None) == []


def test_an_error_is_raised_where_it_was_asked() -> None:
    def fail(tell: Callable[[float], None]) -> tuple[int, int]:
        raise ConfigError("key 'x' is wrong")

    for jobs in (1, 2):
        with pytest.raises(ConfigError, match="key 'x'"):
            spread([task(1), fail, task(2)], jobs, lambda done: None)


def test_a_process_that_dies_is_noticed() -> None:
    def die(tell: Callable[[float], None]) -> tuple[int, int]:
        os._exit(3)

    with pytest.raises(SteersmanError, match="has died"):
        spread([die, die], 2, lambda done: None)
