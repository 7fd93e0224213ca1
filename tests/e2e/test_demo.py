"""`steersman demo`, the whole way: a smaller cluster, less training, shorter replays and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, load_bundle
from steersman.traces.arrivals import scale_tokens
from steersman.traces.outcome_log import read_outcomes
from steersman.traces.readers import load_trace
from steersman.traces.writers import write_trace
from tests.agents.test_train import SETTINGS
from tests.support.browser import measure
from tests.support.processes import run_cli

REPLAY_S = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(place: Path) -> dict[str, Any]:
    # The real arrivals and prompts, with a fifth of the tokens to wait for.
    short = scale_tokens(load_trace("azure-chat", limit=6000), output_factor=0.2)
    write_trace(place / "short.jsonl", short.requests())
    settings = SETTINGS.model_dump(mode="json") | {"trace": "short.jsonl"}
    (place / "train.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    finished = run_cli(
        "demo", "--config", "train.yaml", "--replay-s", str(REPLAY_S), "--json", cwd=place, timeout_s=240
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def test_both_policies_answer_every_request(shown: dict[str, Any]) -> None:
    assert set(shown["replays"]) == {"p2c", "learned"}
    for summary in shown["replays"].values():
        assert summary["trace"] == "short"
        assert summary["statuses"] == {"ok": summary["requests"]}
        assert summary["requests"] >= 10 * REPLAY_S  # 0.8 of the tiny cluster's saturation
        assert sum(summary["share"].values()) == pytest.approx(1.0)
    assert shown["replays"]["p2c"]["fallbacks"] == {}


def test_the_bundle_is_the_champion_of_the_mlflow_store(shown: dict[str, Any], place: Path) -> None:
    store = f"sqlite:///{place / 'mlruns' / 'mlflow.db'}"
    champion = MlflowClient(store, store).get_model_version_by_alias("steersman-routing", "champion")
    served = load_bundle(Path(shown["places"]["champion"]))
    assert set(served.contents) == {LENGTH_FILE, LATENCY_FILE, POLICY_FILE}
    assert champion.tags["bundle_version"] == served.version


def test_the_outcome_log_tells_what_the_learned_policy_did(shown: dict[str, Any]) -> None:
    log = Path(shown["places"]["outcome log"])
    records = list(read_outcomes(log))
    sent = shown["replays"]["learned"]["requests"]
    assert len(records) >= sent  # and the warm-up
    by_policy = [record.policy for record in records[-sent:]]
    fallbacks = sum(shown["replays"]["learned"]["fallbacks"].values())
    assert by_policy.count("learned") == sent - fallbacks
    assert len(load_trace(log)) == len(records)  # it is itself a trace


def test_chromium_opens_the_report(shown: dict[str, Any], chromium: str) -> None:
    seen = measure(chromium, Path(shown["places"]["report"]), 1000)
    assert seen["title"] == "Rehearsal: p2c against learned"
    assert seen["figures"] == 6
    assert seen["scroll_width"] <= seen["client_width"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "missing.yaml"), "missing.yaml: no such file"),
        (("--replay-s", "0"), "greater than or equal to 1"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    finished = run_cli("demo", *arguments, cwd=tmp_path)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
