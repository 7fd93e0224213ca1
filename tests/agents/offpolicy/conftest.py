"""A log of the demo cluster under marginal cost, with a twentieth of the decisions drawn evenly."""

from __future__ import annotations

import pytest

from steersman.agents.learned.shipped import load_shipped
from steersman.agents.offpolicy.matched import Matched, match
from steersman.agents.shadow.challenger import Challenger
from steersman.env.scenario import load_scenario
from steersman.traces.outcome_record import OutcomeRecord
from tests.support.simulated_log import demo_trace, simulated_log

REQUESTS = 700


@pytest.fixture(scope="session")
def records() -> list[OutcomeRecord]:
    """In order of arrival."""
    return simulated_log(demo_trace(REQUESTS), load_scenario("demo").replicas)


@pytest.fixture(scope="session")
def matched(records: list[OutcomeRecord]) -> Matched:
    """With the opinions of the shipped policy."""
    return match(records, {}, Challenger(load_shipped()))
