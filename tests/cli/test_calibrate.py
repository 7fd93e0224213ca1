from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.cli import main
from steersman.env.profiles import load_profile
from tests.env.test_calibrate import csv_of, samples
from tests.support.commands import mistake


def run(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", ["steersman", "calibrate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture
def measured(tmp_path: Path) -> str:
    path = tmp_path / "measured.csv"
    path.write_text(csv_of(samples(150)))
    return str(path)


def test_a_profile_is_fitted_written_and_can_be_used(
    measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    text = run((measured, "--profile", "a100-llama-3.1-8b", "--out", str(out)), monkeypatch, capsys)
    assert "105 requests fitted, 45 held out" in text
    profile = load_profile(str(out))
    assert profile.name == "a100-llama-3.1-8b-calibrated"
    assert profile.source == "calibrated from measured.csv"
    document = json.loads(run((measured, "--profile", str(out), "--json"), monkeypatch, capsys))
    assert document["profile"]["name"] == profile.name
    assert all(abs(line["before"]) < 0.1 for line in document["errors"])


def test_without_a_file_the_profile_is_printed(
    measured: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run((measured, "--profile", "a100-llama-3.1-8b"), monkeypatch, capsys)
    assert "decode_base_s: " in text


def test_a_poor_fit_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for sample in samples(150):
        ttft_s, decode_s = rng.exponential([1.0, 10.0]).tolist()
        rows.append(replace(sample, ttft_s=ttft_s, e2e_s=ttft_s + 5.0 + decode_s))
    path = tmp_path / "noise.csv"
    path.write_text(csv_of(rows))
    text = run((str(path), "--profile", "a100-llama-3.1-8b"), monkeypatch, capsys)
    assert "The fit is poor: ttft_p50" in text


def test_mistakes_end_in_one_line(
    measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.csv"
    few.write_text(csv_of(samples(10)))
    profile = ("--profile", "a100-llama-3.1-8b")
    for arguments, message in (
        ((str(few), *profile), "too little to calibrate on"),
        ((measured, "--profile", "a100-llama"), "unknown hardware profile 'a100-llama'"),
        ((measured, *profile, "--out", str(tmp_path)), "cannot be written"),
    ):
        assert message in mistake(("calibrate", *arguments), monkeypatch, capsys)
