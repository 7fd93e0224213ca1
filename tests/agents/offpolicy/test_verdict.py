"""Who carries a verdict, who may object, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.offpolicy.accuracy import Accuracy, Quality
from steersman.agents.offpolicy.estimators import Estimate
from steersman.agents.offpolicy.matched import Matched
from steersman.agents.offpolicy.ope import OffPolicy
from steersman.agents.offpolicy.verdict import Thresholds, judge, worst_error
from steersman.env.calibrate import ErrorLine
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.shadow_record import ShadowRecord

TRUE = (ErrorLine("ttft_p50", 0.1, float("nan"), 0.02), ErrorLine("ttft_p99", 0.9, float("nan"), 0.9))
ASKS = Thresholds()
GOOD, SAME, WIDE, BAD = (
    Ratio(0.9, 0.85, 0.95),
    Ratio(1.0, 0.99, 1.01),
    Ratio(1.0, 0.9, 1.1),
    Ratio(1.2, 1.1, 1.3),
)


def decisions(n: int, *, failed: int = 0, differing: int = 0) -> Matched:
    record, said = OutcomeRecord("a", 0.0, 1), ShadowRecord("a", 0.0, "v")
    return Matched((record,) * n, (said,) * n, n, failed, 0, 10, differing)


def predictions(loss: Ratio, target: str = "ttft") -> Accuracy:
    quality = Quality(0.1, 0.5, 0.9)
    return Accuracy(target, 900, quality, quality, loss, np.ones(1), np.ones((1, 2)))


def estimates(ratio: Ratio, effective: float = 500.0) -> OffPolicy:
    found = {
        name: Estimate(name, ratio.value, ratio, effective, 0.0, 1.0) for name in ("ips", "snips", "dr")
    }
    return OffPolicy(found, 900, 1.0, 0.05)


FINE = predictions(Ratio(1.0, 0.98, 1.02))


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(GOOD, "better"), (SAME, "no_worse"), (WIDE, "insufficient"), (BAD, "worse")],
)
def test_the_replay_decides(ratio: Ratio, expected: str) -> None:
    found, reasons = judge(decisions(900), ratio, TRUE, (FINE,), estimates(SAME), ASKS)
    assert found == expected
    assert any(f"{ratio.value:.3f}" in reason or f"{ratio.lo:.3f}" in reason for reason in reasons)


def test_estimates_object_but_never_promote() -> None:
    found, reasons = judge(decisions(900), GOOD, TRUE, (FINE,), estimates(BAD), ASKS)
    assert found == "worse"
    assert "object" in reasons[0]
    found, _ = judge(decisions(900), WIDE, TRUE, (FINE,), estimates(GOOD), ASKS)
    assert found == "insufficient"
    found, reasons = judge(decisions(900), GOOD, TRUE, (FINE,), estimates(BAD, effective=20.0), ASKS)
    assert found == "better"
    assert any("too few to object" in reason for reason in reasons)


def test_one_estimator_alone_does_not_object() -> None:
    both = estimates(BAD)
    mixed = replace(both, estimates=both.estimates | {"snips": estimates(SAME).estimates["snips"]})
    assert judge(decisions(900), GOOD, TRUE, (FINE,), mixed, ASKS)[0] == "better"


def test_what_the_guard_decided_speaks_for_the_guard() -> None:
    said = ShadowRecord("a", 0.0, "v", fallback_reason="slow_choice")
    for overruled_of_ten, replayed in ((6, 0.1), (1, 0.6)):
        matched = decisions(900)
        opinions = tuple(
            said if i % 10 < overruled_of_ten else own for i, own in enumerate(matched.opinions)
        )
        matched = replace(matched, opinions=opinions)
        for ratio, expected in ((GOOD, "insufficient"), (BAD, "worse")):
            found, reasons = judge(
                matched, ratio, TRUE, (FINE,), estimates(SAME), ASKS, overruled=replayed
            )
            assert found == expected
            assert any("the guard is what was judged" in reason for reason in reasons)
    found, reasons = judge(decisions(900), GOOD, TRUE, (FINE,), estimates(SAME), ASKS, overruled=0.2)
    assert found == "better"
    assert any("20% of those in the replay" in reason for reason in reasons)


def test_predictions_have_to_hold() -> None:
    worse = predictions(Ratio(1.3, 1.2, 1.4), "tpot")
    found, reasons = judge(decisions(900), GOOD, TRUE, (FINE, worse), estimates(SAME), ASKS)
    assert found == "worse"
    assert "predictions of tpot" in reasons[0]
    assert judge(decisions(900), GOOD, TRUE, (), estimates(SAME), ASKS)[0] == "insufficient"


def test_a_model_that_is_not_true_decides_nothing() -> None:
    wrong = (ErrorLine("tpot_p50", 0.02, float("nan"), -0.4),)
    for ratio in (GOOD, BAD):
        found, reasons = judge(decisions(900), ratio, wrong, (FINE,), estimates(SAME), ASKS)
        assert found == "insufficient"
        assert "tpot_p50 -40% off" in reasons[0]
    assert judge(decisions(900), GOOD, (), (FINE,), estimates(SAME), ASKS)[0] == "insufficient"


def test_too_little_is_not_enough_even_for_worse() -> None:
    found, reasons = judge(decisions(400), BAD, TRUE, (FINE,), estimates(SAME), ASKS)
    assert found == "insufficient"
    assert "400 decisions were scored, 500 are needed" in reasons[0]
    found, reasons = judge(
        decisions(900), None, (), (FINE,), estimates(SAME), ASKS, no_replay="too little traffic"
    )
    assert found == "insufficient"
    assert "too little traffic" in reasons[0]


def test_one_that_breaks_is_worse() -> None:
    found, reasons = judge(decisions(900, failed=30), GOOD, TRUE, (FINE,), estimates(SAME), ASKS)
    assert found == "worse"
    assert "30 of 930" in reasons[0]
    found, reasons = judge(decisions(900, differing=2), GOOD, TRUE, (FINE,), estimates(SAME), ASKS)
    assert found == "better"
    assert any("2 of 10" in reason for reason in reasons)


def test_the_worst_error_leaves_tails_out_and_nan_counts() -> None:
    worst = worst_error(TRUE)
    assert worst is not None
    assert worst.figure == "ttft_p50"
    unknown = ErrorLine("e2e_p90", 1.0, float("nan"), float("nan"))
    assert worst_error((*TRUE, unknown)) == unknown
    assert worst_error(()) is None
