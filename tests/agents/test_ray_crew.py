"""A real Ray cluster of one machine: the same results as without."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steersman.agents.evaluate.contestants import contestants
from steersman.agents.evaluate.run import Protocol, evaluate
from steersman.agents.evaluate.tune import TUNING
from steersman.agents.evaluate.tuning import TuningPlan
from steersman.agents.learned.check import Checker
from steersman.agents.learned.config import CounterfactualSettings, NetworkSettings
from steersman.agents.learned.counterfactual import collect
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.parallel import working
from steersman.agents.ray_crew import LOCAL, RayCrew, ray_crew
from steersman.env.scenario import load_scenario
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import ConfigError, SteersmanError
from tests.agents.learned.scenes import ground, make_practice, small_settings

Work = Callable[[Callable[[float], None]], tuple[int, int]]


@pytest.fixture(scope="module")
def crew() -> Iterator[RayCrew]:
    with ray_crew(LOCAL) as made, working(made):
        yield made


def task(number: int) -> Work:
    def work(tell: Callable[[float], None]) -> tuple[int, int]:
        tell(0.25)
        tell(0.75)
        return number * number, os.getpid()

    return work


def test_no_cluster_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster can be joined") as told, ray_crew("nowhere:1"):
        pass
    assert "\n" not in str(told.value)


def test_results_come_in_order_from_other_processes(crew: RayCrew) -> None:
    told: list[float] = []
    results = crew.work([task(number) for number in range(5)], 2, told.append)
    assert [square for square, _ in results] == [0, 1, 4, 9, 16]
    assert sum(told) == 5.0
    assert os.getpid() not in {pid for _, pid in results}
    assert crew.cpus >= 1


def test_an_error_is_raised_where_it_was_asked(crew: RayCrew) -> None:
    def fail(tell: Callable[[float], None]) -> tuple[int, int]:
        raise ConfigError("key 'x' is wrong")

    with pytest.raises(ConfigError, match="key 'x'"):
        crew.work([task(1), fail, task(2)], 2, lambda done: None)


def test_what_cannot_be_sent_is_told_in_one_line(crew: RayCrew) -> None:
    lock = threading.Lock()
    with pytest.raises(SteersmanError, match="cannot be sent"):
        crew.work([task(1), lambda tell: (int(lock.locked()), 0)], 2, lambda done: None)


def test_an_evaluation_has_the_same_figures(crew: RayCrew) -> None:
    bundle = load_shipped()
    scenario = replace(load_scenario("tiny"), saturation_rps=10.0)
    protocol = Protocol(loads=(0.9,), seeds=(0, 1), requests=60, window_s=0.0, warmup_s=1.0)
    policies = contestants(["p2c", "learned"], bundle)
    with working(None):
        here = evaluate(policies, [scenario], protocol)
    assert evaluate(policies, [scenario], protocol, jobs=2) == here


def test_tuning_finds_the_same_constants_and_writes_them_here(crew: RayCrew, tmp_path: Path) -> None:
    scenarios = [
        replace(load_scenario("tiny"), name=name, saturation_rps=rps)
        for name, rps in (("a", 14.0), ("b", 9.0))
    ]
    short = replace(TUNING, loads=(1.1,), requests=40, warmup_s=3.0, tail_s=0.0)
    plan = TuningPlan(("prequal",), tuple(scenarios), protocol=short, evaluations=10)
    here, there = (replace(plan, folder=tmp_path / name) for name in ("here", "there"))
    runs: list[float] = []
    with working(None):
        alone = here.carry_out(1, lambda done: None)
    shared = there.carry_out(2, runs.append)
    assert [one.tuned for one in shared] == [one.tuned for one in alone]
    assert [one.path.read_text() for one in shared] == [one.path.read_text() for one in alone]
    assert sum(runs) == pytest.approx(22)


def test_practice_and_checks_have_the_same_results(crew: RayCrew) -> None:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings(width=8))
    practice = make_practice()
    settings = CounterfactualSettings(clusters=2, states=4)
    checks = small_settings().check
    found = []
    for jobs in (1, 2):
        states = collect(practice, network, settings, np.random.default_rng(0), jobs=jobs)
        checker = Checker([ground()], FallbackLength(), checks, jobs=jobs)
        found.append((states, checker.check(network)))
    for name, tensor in vars(found[0][0]).items():
        torch.testing.assert_close(getattr(found[1][0], name), tensor, rtol=0.0, atol=0.0)
    assert found[0][1] == found[1][1]
