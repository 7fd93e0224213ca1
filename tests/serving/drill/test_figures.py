"""What is counted, and how it is shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.evidence import Evidence
from steersman.agents.report.page import render
from steersman.serving.canary.state import Transition
from steersman.serving.drill.figures import Harm, P99Ratio, drift, harm, p99_ratio
from steersman.serving.drill.report import page, rows
from steersman.serving.drill.settings import RehearsalSettings, quick
from steersman.serving.drill.story import Act, Story
from steersman.serving.replay_result import ReplayResult
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status
from tests.support.simulated_log import START_UNIX_S, demo_trace, simulated_log

GOOD = OutcomeRecord(
    request_id="r",
    arrival_unix_s=START_UNIX_S,
    input_tokens=10,
    ttft_s=0.5,
    tpot_s=0.01,
    ttft_slo_s=1.0,
    tpot_slo_s=0.1,
    arm="champion",
)


def test_harm_is_what_the_challenger_served_badly() -> None:
    late = replace(GOOD, ttft_s=2.0)
    counted = harm(
        [
            *([GOOD] * 6),
            late,
            replace(late, arm="challenger"),
            replace(GOOD, arm="challenger"),
            replace(GOOD, arm="challenger", status=Status.FAILED),
            replace(GOOD, arm="challenger", status=Status.REJECTED),
            replace(GOOD, arm="challenger", ttft_slo_s=math.nan),
            replace(late, arm="challenger", arrival_unix_s=START_UNIX_S - 1.0),
            replace(late, arm="challenger", arrival_unix_s=START_UNIX_S + 10.0),
        ],
        START_UNIX_S,
        START_UNIX_S + 9.0,
    )
    assert counted == Harm(requests=11, served=4, harmed=2)
    assert counted.fraction == pytest.approx(2 / 11)
    assert Harm(0, 0, 0).fraction == 0.0


def test_drift_is_counted_from_the_change() -> None:
    from steersman.env.scenario import load_scenario

    trace = demo_trace(900, load=0.5)
    at_s = float(trace.arrival_s[450])
    records = simulated_log(trace, load_scenario("demo").replicas, slow_at=(at_s, 2.5))
    found = drift(records, START_UNIX_S + at_s)
    assert found is not None
    assert 5 <= found.requests <= 100
    assert found.what.startswith("raw_")
    assert found.seconds > 0.0
    assert drift(records[:400], START_UNIX_S + at_s) is None


def result(seconds: float, count: int = 40) -> ReplayResult:
    ones = np.ones(count)
    return ReplayResult(
        name="t",
        url="http://x",
        model="m",
        wall_s=20.0,
        request_id=tuple(map(str, range(count))),
        scheduled_s=np.linspace(0.0, 20.0, count),
        lateness_s=0.0 * ones,
        ttft_s=seconds * np.linspace(0.5, 1.5, count),
        tpot_s=0.02 * ones,
        e2e_s=3.0 * ones,
        input_tokens=np.ones(count, dtype=np.int64),
        output_tokens=np.ones(count, dtype=np.int64),
        wanted_output_tokens=np.ones(count, dtype=np.int64),
        ttft_slo_s=ones,
        tpot_slo_s=ones,
        status=(Status.OK,) * count,
        http_status=np.full(count, 200),
        began=ones > 0,
        replica=("a",) * count,
        fallback=("",) * count,
        error=("",) * count,
    )


def test_the_story_is_told_on_one_page_with_its_figures() -> None:
    evidence = Evidence(
        kind="shadow",
        challenger="v2",
        champion="v1",
        verdict="worse",
        reasons=("it is slower <everywhere>",),
        figures={},
        made_unix_s=1.0,
    )
    story = Story(
        acts=[
            Act("hardware changed", "v1", START_UNIX_S, result(2.0)),
            *(Act("canary (second)", "v1", START_UNIX_S + 30 * i, result(1.5)) for i in range(1, 4)),
            Act("new champion", "v2", START_UNIX_S + 200, result(1.0)),
        ],
        told=[("hardware", "slower from now on")],
        shadows={"bad": evidence},
        transitions=[
            Transition(
                at_unix_s=1.0,
                what="rolled_back",
                challenger="v3",
                champion="v2",
                share=0.0,
                reason="p99",
            )
        ],
        p99=P99Ratio(2.0, 1.5, 0.6, 0.9),
        promoted=True,
        harm=Harm(1000, 40, 12),
        rollback_s=3.5,
        log_cpu=0.02,
        dr_error=0.001,
    )
    by_name = {str(one["name"]): one["value"] for one in rows(story)}
    assert by_name == {
        "drift.detected_after_requests": None,
        "p99_ttft_ratio.after_promotion": 0.75,
        "p99_ttft_ratio.in_canary": None,
        "bad_challenger.requests_harmed_fraction": 0.012,
        "rollback.seconds": 3.5,
        "log.cpu_fraction": 0.02,
        "ope.dr_error_known_case": 0.001,
    }
    html = render(page(story, RehearsalSettings(), ["steersman rehearsal"]))
    for told in ("slower from now on", "rolled back", "1.20 %", "&lt;everywhere&gt;", "new champion"):
        assert told in html
    assert html.count("<svg") >= 2


def test_the_same_requests_are_compared_without_those_that_came_first() -> None:
    before, after = result(2.0, 400), result(1.0, 400)
    before.ttft_s[:40] = 100.0
    found = p99_ratio(before, after, settling=40, seed=0)
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert found.lo <= found.ratio <= found.hi
    assert found.hi - found.lo < 0.05, "the same blocks of both"
    assert p99_ratio(before, after, settling=0, seed=0).ratio < 0.1


def test_the_short_story_is_short() -> None:
    short, whole = quick(), RehearsalSettings()
    for key in ("before", "judged", "shadow", "most", "priced"):
        assert getattr(short, key) < getattr(whole, key)
