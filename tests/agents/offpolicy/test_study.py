"""A study from a log to its page."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from steersman.agents.evidence import Evidence
from steersman.agents.learned.shipped import DIRECTORY, load_shipped
from steersman.agents.offpolicy.contestants import contestant
from steersman.agents.offpolicy.learning import learning
from steersman.agents.offpolicy.study import Study, StudySettings, study
from steersman.agents.offpolicy.verdict import Thresholds
from steersman.agents.registry import Registry, RunRecord
from steersman.agents.report.page import render
from steersman.agents.report.shadow import shadow_page
from steersman.cli import main
from steersman.cli.shadow import document
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_record import OutcomeRecord
from tests.support.commands import mistake
from tests.support.simulated_log import START_UNIX_S, demo_trace, simulated_log, write_log

SETTINGS = StudySettings(seeds=(0, 1, 2), requests=250)


@pytest.fixture(scope="module")
def found(records: list[OutcomeRecord]) -> Study:
    return study(
        records, {}, load_shipped(), contestant("random"), SETTINGS, now_unix_s=START_UNIX_S + 1e4
    )


def test_the_shipped_policy_is_better_than_chance(found: Study) -> None:
    evidence = found.evidence
    assert (evidence.kind, evidence.verdict) == ("shadow", "better")
    assert (evidence.challenger, evidence.champion) == (load_shipped().version, "random")
    assert evidence.figures["replay.j_ratio.hi"] < 1.0
    assert evidence.figures["decisions"] == 700.0
    assert Evidence.from_json(evidence.to_json()) == evidence


def test_the_page_shows_all_of_it(found: Study) -> None:
    page = render(shadow_page(found, commands=["steersman shadow report"]))
    for title in (
        *("Verdict: better", "Counterfactual replay", "Agreement", "Predicted against realised"),
        *("Off-policy estimates", "The cluster behind the replay", "Learning while serving"),
    ):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<svg") >= 6
    assert "nan" not in re.sub("<svg.*?</svg>", "", page, flags=re.DOTALL).lower().replace("tenant", "")


def test_the_document_is_json(found: Study) -> None:
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    again = orjson.loads(orjson.dumps(document(found), option=options))
    assert again["evidence"]["verdict"] == "better"
    assert len(again["replay"]["runs"]) == 6
    assert again["off_policy"]["estimates"]["dr"]["effective"] > 0


def test_too_little_says_what_is_missing(records: list[OutcomeRecord]) -> None:
    few = study(
        records[:60], {}, load_shipped(), contestant("random"), SETTINGS, now_unix_s=START_UNIX_S
    )
    assert few.evidence.verdict == "insufficient"
    assert "60 decisions were scored, 500 are needed" in few.evidence.reasons[0]
    assert any("log more traffic" in reason for reason in few.evidence.reasons)
    page = render(shadow_page(few))
    assert "not enough to tell" in page
    with pytest.raises(ConfigError, match="no records"):
        study([], {}, load_shipped(), contestant("random"), SETTINGS, now_unix_s=0.0)


def test_several_models_are_told_apart(records: list[OutcomeRecord]) -> None:
    few = [replace(record, model="other") for record in records[:30]]
    settings = replace(SETTINGS, thresholds=Thresholds(decisions=10))
    mixed = study(
        [*few, *records[30:90]], {}, load_shipped(), contestant("random"), settings, now_unix_s=0.0
    )
    assert mixed.model == "m"
    assert "other" in mixed.notes[0]
    with pytest.raises(ConfigError, match="no request for model 'x'"):
        study(few, {}, load_shipped(), contestant("random"), settings, model="x", now_unix_s=0.0)


def test_drift_corrections_and_versions_are_told() -> None:
    """Hardware that slows down in the middle: the detectors alarm after it, the correctors follow."""
    trace = demo_trace(1200, load=0.35)
    middle_s = trace.duration_s / 2
    pool = load_scenario("demo").replicas[:2]
    log = simulated_log(trace, pool, slow_at=(middle_s, 1.6))
    log = [
        replace(record, bundle_version="v2" if record.arrival_unix_s > START_UNIX_S + 1e9 else "v1")
        for record in log
    ]
    found = learning(log)
    latencies = [alarm for alarm in found.alarms if alarm.target != "output"]
    assert latencies
    assert min(alarm.at_unix_s for alarm in latencies) > START_UNIX_S + middle_s
    assert found.changed_unix_s == max(alarm.since_unix_s for alarm in latencies)
    first = min((alarm for alarm in latencies if alarm.replica), key=lambda alarm: alarm.at_unix_s)
    assert abs(first.since_unix_s - START_UNIX_S - middle_s) < 15.0, "about when it began"
    for each in found.corrections:
        assert each.tpot_first == 1.0
        assert each.tpot_last > 1.25
    assert [(served.version, served.decisions) for served in found.versions] == [("v1", 1200)]


def test_another_version_restarts_the_detectors(records: list[OutcomeRecord]) -> None:
    later = [replace(record, bundle_version="v2") for record in records[350:]]
    found = learning([*records[:350], *later])
    assert [served.version for served in found.versions] == ["marginal-cost", "v2"]
    assert sum(served.decisions for served in found.versions) == len(records)


def test_the_command_reports(
    tmp_path: Path,
    records: list[OutcomeRecord],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made_store: Callable[[Path], Path],
) -> None:
    log = write_log(tmp_path / "log", records)
    html, json = tmp_path / "out" / "shadow.html", tmp_path / "out" / "shadow.json"
    given = ["report", "--log", str(log), "--challenger", str(DIRECTORY), "--seeds", "2"]
    given += ["--requests", "150", "--html", str(html), "--json", str(json)]
    registry = Registry(made_store(tmp_path / "mlruns"))
    registered = registry.log_training_run(load_shipped(), RunRecord({}, {}), run_name="shipped")
    given += ["--record", "--mlruns", str(registry.root)]
    monkeypatch.setattr(sys, "argv", ["steersman", "shadow", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    answer = capsys.readouterr().out
    assert f"{load_shipped().version} against marginal-cost" in answer
    assert "700 decisions, 0 scored while they were served" in answer
    assert orjson.loads(json.read_bytes())["evidence"]["kind"] == "shadow"
    assert "Counterfactual replay" in html.read_text()
    (kept,) = registry.evidence(registered.version)
    assert (kept.kind, kept.challenger) == ("shadow", load_shipped().version)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--log", "/nowhere", "--challenger", str(DIRECTORY)), "outcome log segments"),
        (("--log", "LOG", "--challenger", "/nowhere"), "no bundle here"),
        (("--log", "LOG", "--challenger", str(DIRECTORY), "--champion", "/nowhere"), "no bundle here"),
        (("--log", "LOG", "--challenger", str(DIRECTORY), "--model", "x"), "model 'x'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path,
    records: list[OutcomeRecord],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    log = write_log(tmp_path / "log", records[:5])
    given = tuple(str(log) if each == "LOG" else each for each in options)
    assert told in mistake(("shadow", "report", *given), monkeypatch, capsys)
