"""A refit from a log on disk to a bundle on disk, and every way in which it may fail."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.fit.sampling import LatencySamples
from steersman.agents.refit.attempt import at_other_speeds, refit_latency, refit_length
from steersman.agents.refit.outcomes import Taught, logged_outcomes
from steersman.agents.refit.refit import RefitPlan, previous_of, refit, roll_back
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, load_bundle
from steersman.predictors.latency import AnalyticLatency, LatencyModel, latency_rows
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import ArtifactError, TraceError
from tests.agents.refit.logs import write_log
from tests.serving.graphs import policy_bundle


def test_a_refit_beats_the_estimate_and_is_not_replaced_by_its_like(lessons: list[Taught]) -> None:
    outcomes = logged_outcomes(lessons)
    fitted, verdict = refit_latency(outcomes, AnalyticLatency(), window=5_000, since_s=None, seed=0)
    assert fitted is not None
    assert verdict.better, verdict.reason
    serves = LatencyModel.from_bytes(fitted.onnx)
    _, again = refit_latency(outcomes, serves, window=5_000, since_s=None, seed=0)
    assert not again.better
    shuffled = np.random.default_rng(0).permutation(len(outcomes))
    worse = replace(
        outcomes,
        ttft_s=np.where(np.arange(len(outcomes)) < 1_500, outcomes.ttft_s[shuffled], outcomes.ttft_s),
    )
    _, verdict = refit_latency(worse, serves, window=5_000, since_s=None, seed=0)
    assert not verdict.better
    assert "ttft would become" in verdict.reason


def test_a_change_of_the_world_is_learned_whether_it_was_noticed_or_not(lessons: list[Taught]) -> None:
    """Answers become three times as long: most of the window misleads."""
    cut = 1_100
    changed = [
        lesson if i < cut else lesson._replace(output_tokens=3.0 * lesson.output_tokens)
        for i, lesson in enumerate(lessons)
    ]
    outcomes = logged_outcomes(changed)
    for since_s in (None, lessons[cut].ended_s):
        _, verdict = refit_length(outcomes, FallbackLength(), window=5_000, since_s=since_s, seed=0)
        assert verdict.better, verdict.reason
        assert verdict.figures["output.new.mdape"] < 0.6 * verdict.figures["output.old.mdape"]


def test_other_speeds_leave_the_correction_as_it_is(lessons: list[Taught]) -> None:
    outcomes = logged_outcomes(lessons[:200])
    rows = latency_rows(outcomes.replicas[:, None], outcomes.requests)[:, 0]
    samples = LatencySamples(rows, outcomes.ttft_s, outcomes.tpot_s, np.full(200, np.nan))
    both = at_other_speeds(samples, seed=3)
    assert len(both) == 400
    assert np.array_equal(both.rows[:200], rows)
    factor = both.ttft_s[200:] / samples.ttft_s
    assert factor.min() < 0.7
    assert factor.max() > 1.4
    changed = both.rows[200:] / np.where(rows == 0.0, 1.0, rows)
    for column, ratio in enumerate(changed.T):
        moved = not np.allclose(ratio[rows[:, column] != 0.0], 1.0)
        if moved and (both.rows[200:, column] > 0.0).all():
            np.testing.assert_allclose(ratio, factor, rtol=1e-5)


def test_a_refit_replaces_the_bundle_and_keeps_the_old(tmp_path: Path, lessons: list[Taught]) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    plan = RefitPlan(write_log(tmp_path / "log", lessons), bundle)
    report = refit(plan)
    assert "latency" in report.replaced
    assert report.outcomes == len(lessons)
    served = load_bundle(bundle)
    assert served.version == report.version
    assert served.version.endswith("-refit")
    assert LATENCY_FILE in served.contents
    assert (LENGTH_FILE in served.contents) == ("length" in report.replaced)
    assert served.contents[POLICY_FILE] == load_bundle(previous_of(bundle)).contents[POLICY_FILE]
    assert served.manifest.trained_on["refit"]["of"] == "v1"
    assert refit(plan).replaced == [], "it is not better than itself"
    assert load_bundle(bundle).version == served.version
    assert roll_back(bundle).version == "v1"
    assert load_bundle(bundle).version == "v1"
    assert roll_back(bundle).version == served.version


def test_without_a_bundle_the_estimates_are_what_it_has_to_beat(
    tmp_path: Path, lessons: list[Taught]
) -> None:
    bundle = tmp_path / "new" / "champion"
    report = refit(RefitPlan(write_log(tmp_path / "log", lessons), bundle))
    assert "latency" in report.replaced
    assert load_bundle(bundle).version == report.version
    assert not previous_of(bundle).exists()


def test_too_few_outcomes_change_nothing(tmp_path: Path, lessons: list[Taught]) -> None:
    bundle = tmp_path / "champion"
    report = refit(RefitPlan(write_log(tmp_path / "log", lessons[:300]), bundle))
    assert report.replaced == []
    assert all(reason.startswith("too few") for reason in report.reasons.values())
    assert not bundle.exists()


def test_only_one_refit_works_at_a_time(tmp_path: Path) -> None:
    handle = os.open(tmp_path / ".champion.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(ArtifactError, match="another refit is at work"):
            refit(RefitPlan(tmp_path, tmp_path / "champion"))
    finally:
        os.close(handle)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match="cannot be written"):
        refit(RefitPlan(tmp_path, tmp_path / "file" / "champion"))


def test_without_a_log_there_is_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no outcome log"):
        refit(RefitPlan(tmp_path, tmp_path / "champion"))


def test_a_corrupt_bundle_is_not_replaced(tmp_path: Path, lessons: list[Taught]) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    (bundle / POLICY_FILE).write_bytes(b"garbage")
    with pytest.raises(ArtifactError, match="SHA-256"):
        refit(RefitPlan(write_log(tmp_path / "log", lessons[:10]), bundle))
