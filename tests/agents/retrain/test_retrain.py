"""From a log to a challenger, also after a kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from steersman.agents.registry import CHALLENGER, CHAMPION, Registry
from steersman.agents.retrain.plan import RetrainPlan, RetrainResult
from steersman.agents.retrain.retrain import retrain, since_drift
from steersman.agents.retrain.work import PLAN
from steersman.env.scenario import load_scenario
from steersman.predictors.bundle import POLICY_FILE, load_bundle
from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.outcome_record import OutcomeRecord
from tests.agents.retrain.conftest import SMALL
from tests.support.simulated_log import demo_trace, simulated_log, write_log


class Killed(BaseException):
    """What no `except Exception` stops."""


class Stopping:
    """Notes the stages, and kills the process in one of them."""

    def __init__(self, at: str = "") -> None:
        self.seen: list[str] = []
        self._at = at

    def __call__(self, stage: str, share: float, note: str) -> None:
        if stage not in self.seen:
            self.seen.append(stage)
        if stage == self._at:
            raise Killed


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, logged: list[OutcomeRecord]) -> Path:
    return write_log(tmp_path_factory.mktemp("retrain") / "log", logged)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, log: Path, made_store: Callable[[Path], Path]
) -> tuple[RetrainResult, Registry, Path]:
    """Killed twice on the way, and gone on with."""
    home = tmp_path_factory.mktemp("made")
    registry, plan = Registry(made_store(home / "mlruns")), RetrainPlan(log, home / "out", SMALL)
    for stage in ("comparison", "record"):
        stopping = Stopping(stage)
        with pytest.raises(Killed):
            retrain(plan, registry, progress=stopping)
        assert stopping.seen[-1] == stage
    going_on = Stopping()
    result = retrain(plan, registry, progress=going_on)
    assert going_on.seen == ["log", "record"], "what was done is not done again"
    return result, registry, home


def test_a_challenger_is_registered_and_no_champion(made: tuple[RetrainResult, Registry, Path]) -> None:
    result, registry, home = made
    assert result.resumed
    assert registry.version_of(CHALLENGER) == result.registered.version == "1"
    assert registry.version_of(CHAMPION) is None
    assert not registry.champion_directory.exists()
    bundle = load_bundle(home / "out" / "bundle")
    assert bundle.version == result.bundle.version == result.registered.bundle_version
    assert POLICY_FILE in bundle.contents


def test_its_evidence_says_whom_it_met_and_how_it_went(
    made: tuple[RetrainResult, Registry, Path],
) -> None:
    result, registry, _ = made
    (evidence,) = registry.evidence("1")
    assert evidence == result.evidence
    assert (evidence.kind, evidence.challenger) == ("evaluation", result.bundle.version)
    assert evidence.champion == result.tags["parent"]
    assert evidence.figures["j_ratio.log.lo"] <= evidence.figures["j_ratio.log"]
    assert abs(evidence.figures["fidelity.e2e_p50"]) < 0.05, "the log is of this very model"
    assert "streams of held-out log" in evidence.reasons[0]


def test_its_lineage_is_whole(made: tuple[RetrainResult, Registry, Path], log: Path) -> None:
    result, _, _ = made
    trained_on = load_bundle(result.bundle.directory).manifest.trained_on
    for key in ("fingerprint", "parent", "seed", "settings", "from", "until", "requests"):
        assert str(trained_on[key]) == result.tags[key]
    assert result.tags["trace"] == str(log)
    assert result.tags["requests"] == "1000"
    assert result.screened.read == 1000


def test_what_came_before_a_drift_is_left_out_if_the_rest_is_enough() -> None:
    trace = demo_trace(900, load=0.5)
    at_s = float(trace.arrival_s[400])
    drifted = simulated_log(trace, load_scenario("demo").replicas, slow_at=(at_s, 2.5))
    records = tuple(sorted(drifted, key=lambda record: record.arrival_unix_s))
    since = since_drift(records, 200)
    assert 200 <= len(since) <= 500
    assert since == records[-len(since) :]
    assert since_drift(records, 600) == records
    assert since_drift(records[:300], 10) == records[:300]


def test_other_settings_begin_anew(
    tmp_path: Path, log: Path, made: tuple[RetrainResult, Registry, Path]
) -> None:
    _, registry, _ = made
    plan = RetrainPlan(log, tmp_path / "out", SMALL)
    with pytest.raises(Killed):
        retrain(plan, registry, progress=Stopping("policy"))
    (tmp_path / "out" / PLAN).write_text('{"identity": "torn')
    again = Stopping("policy")
    with pytest.raises(Killed):
        retrain(replace(plan, settings=SMALL.model_copy(update={"seed": 1})), registry, progress=again)
    assert again.seen == ["log", "predictors", "policy"]


def test_a_log_without_enough_in_it_is_refused(
    tmp_path: Path, log: Path, logged: list[OutcomeRecord]
) -> None:
    registry = Registry(tmp_path / "mlruns")
    since_s = logged[500].arrival_unix_s
    with pytest.raises(TraceError, match="500 sound requests ended well, 900 are needed"):
        retrain(RetrainPlan(log, tmp_path / "out", SMALL, since_s), registry)
    with pytest.raises(TraceError, match="no outcome log"):
        retrain(RetrainPlan(tmp_path / "nothing", tmp_path / "out", SMALL), registry)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path, log: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds 'thesis\.txt', which no retraining made"):
        retrain(RetrainPlan(log, home, SMALL), Registry(tmp_path / "mlruns"))
    assert (home / "thesis.txt").exists()
