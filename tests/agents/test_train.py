from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow.models
import mlflow.onnx
import numpy as np
import onnx
import pytest
from mlflow import MlflowClient
from onnxruntime import InferenceSession as OnnxSession

from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.registry import CHALLENGER, CHAMPION, Registry
from steersman.agents.samples import sample_observation
from steersman.agents.train import Stage, TrainResult, TrainSettings, What, load_train_settings, train
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, load_bundle
from steersman.predictors.length import LengthModel
from steersman.traces.errors import ConfigError
from tests.agents.learned.scenes import small_settings

SETTINGS = TrainSettings.model_validate(
    {
        "scenario": "tiny",
        "latency": {"runs": 3, "decisions": 150},
        "policy": small_settings(budget_s=2.0).model_dump(),
        "evaluation": {"loads": [0.8], "seeds": 2, "requests": 60, "warmup_s": 2.0},
    }
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def stages() -> list[tuple[Stage, float]]:
    return []


@pytest.fixture(scope="module")
def result(
    place: Path, stages: list[tuple[Stage, float]], made_store: Callable[[Path], Path]
) -> TrainResult:
    return train(
        SETTINGS,
        registry=Registry(made_store(place / "mlruns")),
        out=place / "out",
        promote=True,
        progress=lambda stage, share, _: stages.append((stage, share)),
    )


def test_a_bundle_with_all_models_is_made_and_promoted(result: TrainResult, place: Path) -> None:
    served = load_bundle(place / "mlruns" / "served" / "champion")
    assert result.champion == served.directory
    assert set(served.contents) == {LENGTH_FILE, LATENCY_FILE, POLICY_FILE}
    assert served.version == result.bundle.version
    assert served.manifest.trained_on["scenario"] == "tiny"
    assert len(served.manifest.trained_on["fingerprint"]) == 64
    policy = LearnedPolicy.from_bundle(served, np.random.default_rng(0))
    seen = sample_observation(np.random.default_rng(1), 5)
    assert seen.mask[policy.decide(seen).choice]
    assert LengthModel.from_bundle(served) is not None


def test_progress_names_every_stage_and_never_goes_back(
    result: TrainResult, stages: list[tuple[Stage, float]]
) -> None:
    assert list(dict.fromkeys(stage for stage, _ in stages)) == list(Stage)
    for stage in Stage:
        shares = [share for name, share in stages if name is stage]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert set(result.seconds) == {stage.value for stage in Stage}


def test_the_run_tells_what_was_done_on_what_and_how_well(result: TrainResult, place: Path) -> None:
    registry = Registry(place / "mlruns")
    assert registry.version_of(CHAMPION) == registry.version_of(CHALLENGER) == result.registered.version
    client = MlflowClient(registry.store.uri, registry.store.uri)
    run = client.get_run(result.registered.run_id)
    assert run.data.params["policy.ppo.clip"] == "0.2"
    assert run.data.params["scenario"] == "tiny"
    assert run.data.tags["fingerprint"] == result.bundle.manifest.trained_on["fingerprint"]
    for name in ("length.pinball_p50", "policy.best_check_ratio", "evaluation.j_ratio.p2c.lo"):
        assert run.data.metrics[name] == pytest.approx(result.metrics[name])
    assert client.get_metric_history(run.info.run_id, "policy.check_ratio")
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "evaluation.json")).read_text())
    assert {row["policy"] for row in table["runs"]} == {"learned", "marginal-cost", "p2c"}


def test_the_verdict_is_what_the_intervals_allow(result: TrainResult) -> None:
    for name, ratio in result.ratios.items():
        said = next(part for part in result.verdict.split("; ") if f" {name}:" in part)
        assert said.startswith("better than") == (ratio.hi < 1.0)
        assert said.startswith("worse than") == (ratio.lo > 1.0)


def test_the_policy_alone_keeps_the_predictors(result: TrainResult, place: Path) -> None:
    again = train(
        SETTINGS,
        what=What.POLICY,
        registry=Registry(place / "mlruns"),
        out=place / "policy",
        predictors=result.bundle,
    )
    assert again.champion is None
    assert again.bundle.contents[LENGTH_FILE] == result.bundle.contents[LENGTH_FILE]
    assert Registry(place / "mlruns").version_of(CHAMPION) == result.registered.version


def test_predictors_alone_make_a_bundle_without_policy(place: Path) -> None:
    made = train(
        SETTINGS, what=What.PREDICTORS, registry=Registry(place / "mlruns"), out=place / "predictors"
    )
    assert set(made.bundle.contents) == {LENGTH_FILE, LATENCY_FILE}
    assert made.table is None
    assert made.verdict == ""
    registry = Registry(place / "mlruns")
    client = MlflowClient(registry.store.uri, registry.store.uri)
    run_id = made.registered.run_id
    texts = {file.path for file in client.list_artifacts(run_id, "latency")}
    assert {"latency/ttft.txt", "latency/tpot-spread.txt"} <= texts
    assert {"latency/ttft-calibration.svg", "latency/tpot-coverage-by-load.svg"} <= texts
    texts = {file.path for file in client.list_artifacts(run_id, "length")}
    assert "length/output-calibration.svg" in texts
    for name in ("length", "latency"):
        stored = Path(client.download_artifacts(run_id, f"models/{name}"))
        model = mlflow.models.Model.load(stored)
        assert model.signature.inputs.input_names() == ["features"]
        loaded: Any = model.load_input_example(str(stored))
        example = loaded["features"]
        served = made.bundle.contents[f"{name}.onnx"]
        graph = mlflow.onnx.load_model(str(stored))
        assert graph.SerializeToString() == onnx.load_model_from_string(served).SerializeToString()
        answer = OnnxSession(served).run(None, {"features": example})[0]
        assert len(answer) == len(example) > 10


def test_a_settings_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_train_settings("nowhere")


def test_an_unknown_scenario_is_named(place: Path) -> None:
    with pytest.raises(ConfigError, match="tinny"):
        train(
            SETTINGS.model_copy(update={"scenario": "tinny"}),
            registry=Registry(place / "mlruns"),
            out=place / "x",
        )
