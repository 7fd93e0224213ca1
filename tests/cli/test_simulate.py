from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.cli import main
from steersman.predictors.bundle import write_bundle
from tests.parity.test_policy import GRAPH
from tests.support.commands import mistake

QUICK = ("--requests", "60", "--seeds", "2", "--warmup-s", "2")


def run(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", ["steersman", "simulate", "tiny", *QUICK, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    files = {"policy.onnx": GRAPH}
    return write_bundle(
        tmp_path / "bundle", files, version="b1", code_version="0", created=created
    ).directory


def test_policies_are_compared_in_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(("--load", "0.7"), monkeypatch, capsys)
    assert "tiny 70%" in out
    for name in ("p2c", "least-connections", "marginal-cost"):
        assert name in out
    assert "2 seeds" in out


def test_the_learned_policy_runs_guarded(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(("--bundle", str(bundle), "--json"), monkeypatch, capsys)
    answer = json.loads(out)
    learned = [row for row in answer["runs"] if row["policy"] == "learned"]
    assert [row["seed"] for row in learned] == [0, 1]
    assert answer["baseline"] == "p2c"
    # The graph of this test knows another range of features than any cluster has.
    assert sum(learned[0]["fallbacks"].values()) > 0
    table = run(("--bundle", str(bundle), "--policies", "learned"), monkeypatch, capsys)
    assert "fallbacks of learned" in table


def test_json_holds_every_run_and_the_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(run(("--policies", "random,marginal-cost", "--json"), monkeypatch, capsys))
    assert len(answer["runs"]) == 4
    assert answer["runs"][0]["scenario"] == "tiny"
    first = answer["ratios"][0]
    assert first["name"] == "J of marginal-cost over random, all cells"
    assert first["lo"] <= first["value"] <= first["hi"]


def test_a_trace_of_ones_own_is_measured_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.csv"
    lines = [f"2024-01-01 00:{i // 60:02d}:{i % 60:02d}.0000000,{300 + i},{40}" for i in range(600)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    answer = json.loads(run(("--trace", str(path), "--policies", "p2c", "--json"), monkeypatch, capsys))
    assert answer["runs"][0]["requests"] > 20
    assert answer["runs"][0]["failed"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tinny",), "unknown scenario 'tinny'; did you mean 'tiny'?"),
        (("tiny", "--policies", "p2d"), "unknown policy 'p2d'; did you mean 'p2c'?"),
        (("tiny", "--policies", "p2c,p2c"), "policy 'p2c' is named twice"),
        (("tiny", "--policies", ","), "--policies is empty"),
        (("tiny", "--load", "80"), "--load: 80 is not a share of saturation"),
        (("tiny", "--bundle", "/no/such/bundle"), "/no/such/bundle"),
        (("tiny", "--guard", "/no/such.yaml"), "/no/such.yaml: no such file"),
        (("tiny", "--trace", "/no/such.csv"), "/no/such.csv"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in mistake(("simulate", *arguments), monkeypatch, capsys)
