from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from steersman.cli.train import app
from steersman.traces.errors import ArtifactError, ConfigError
from tests.agents.test_train import SETTINGS

RUNNER = CliRunner()


def write_settings(directory: Path) -> str:
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(json.loads(SETTINGS.model_dump_json())), encoding="utf-8")
    return str(path)


def test_trains_predictors_then_a_policy_and_promotes(
    tmp_path: Path, made_store: Callable[[Path], Path]
) -> None:
    config, store = write_settings(tmp_path), str(made_store(tmp_path / "mlruns"))
    fitted = RUNNER.invoke(
        app, ["predictors", "--config", config, "--mlruns", store, "--promote", "--json"]
    )
    assert fitted.exit_code == 0, fitted.output
    made = json.loads(fitted.stdout)
    assert made["champion"] == str(tmp_path / "mlruns" / "served" / "champion")

    trained = RUNNER.invoke(
        app, ["policy", "--config", config, "--mlruns", store, "--budget-s", "1", "--seed", "3"]
    )
    assert trained.exit_code == 0, trained.output
    assert "marginal-cost: J ratio" in trained.stdout
    assert "to serve it: steersman promote 2" in trained.stdout
    assert (tmp_path / "mlruns" / "training" / "policy.checkpoint").is_file()

    refused = RUNNER.invoke(app, ["promote", "--mlruns", store])
    assert isinstance(refused.exception, ArtifactError)  # nobody has seen it beside the champion
    reason = "nothing serves here yet"
    promoted = RUNNER.invoke(app, ["promote", "--mlruns", store, "--override", reason, "--json"])
    assert promoted.exit_code == 0, promoted.output
    champion = tmp_path / "mlruns" / "served" / "champion"
    assert json.loads(promoted.stdout)["bundle"] != made["bundle"]["version"]
    assert {path.name for path in champion.iterdir()} == {
        "bundle.json",
        "latency.onnx",
        "length.onnx",
        "policy.onnx",
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["all", "--config", "missing.yaml"], ConfigError, r"missing\.yaml: no such file"),
        (["all", "--scenario", "tinny"], ConfigError, "tinny"),
        (["policy", "--predictors", "nowhere"], ArtifactError, "no bundle here"),
        (["promote", "7"], ArtifactError, "no MLflow store here"),
        (["policy", "--resume"], ArtifactError, "no checkpoint to resume from"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    done = RUNNER.invoke(app, [*arguments, "--mlruns", str(tmp_path / "mlruns")])
    assert isinstance(done.exception, error)
    assert "\n" not in str(done.exception)
    with pytest.raises(error, match=message):
        raise done.exception


@pytest.mark.parametrize("option", ["--mlruns", "--out"])
def test_a_place_that_cannot_be_written_is_told_before_training(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    places = {"--mlruns": str(tmp_path / "mlruns"), "--out": str(tmp_path / "out")}
    places[option] = str(tmp_path / "file")
    arguments = [text for pair in places.items() for text in pair]
    told = RUNNER.invoke(app, ["predictors", "--config", write_settings(tmp_path), *arguments])
    assert isinstance(told.exception, ArtifactError | ConfigError)
    assert "file: cannot be written" in str(told.exception)
    assert "length" not in told.output, "nothing was trained"
