"""Bundles come and go under a running router."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.agents.learned import shipped
from steersman.agents.learned.shipped import load_shipped
from steersman.predictors.bundle import LATENCY_FILE, POLICY_FILE, write_bundle
from steersman.predictors.latency import LEAST_S
from steersman.serving.app import create_app
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_log import read_outcomes
from tests.predictors.test_latency import answering
from tests.serving.backends import completion, events, stream, whole
from tests.serving.graphs import policy_bundle
from tests.serving.harness import Routed, chat, eventually, rig, settings_for

GOOD = whole(completion())
MADE = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_bundle_serves_and_is_replaced_while_running(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned", "exploration": 0.0},
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.02},
    }
    async with rig(GOOD, GOOD, **sections) as (router, _):
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "learned"
        assert "x-steersman-fallback" not in headers
        assert await router.metric('steersman_bundle_info{version="v1"}') == 1.0
        policy_bundle(bundle, "v2")
        await eventually(lambda: router.parts.models.version == "v2")
        assert await router.metric('steersman_bundle_info{version="v1"}') == 0.0
        assert await router.metric('steersman_bundle_loads_total{result="loaded"}') == 2.0
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "learned"


async def test_a_corrupt_bundle_does_not_stop_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    (bundle / POLICY_FILE).write_bytes(b"garbage")
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned", "options": {"shipped": False}},
        "bundle": {"directory": str(bundle)},
    }
    async with rig(GOOD, **sections) as (router, _):
        status, _, headers = await router.post()
        assert status == 200
        assert headers["x-steersman-policy"] == "marginal-cost"
        assert headers["x-steersman-fallback"] == "no_model"
        assert await router.metric('steersman_bundle_loads_total{result="refused"}') == 1.0
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    assert "SHA-256" in lines[0]
    assert "\n" not in lines[0]


async def test_a_corrupt_replacement_leaves_the_old_one_serving(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned"},
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.02},
    }
    async with rig(GOOD, **sections) as (router, _):
        (bundle / "bundle.json").write_text("{")
        await eventually(lambda: _refused(router))
        assert router.parts.models.version == "v1"
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "learned"


async def _refused(router: Routed) -> bool:
    return bool(await router.metric('steersman_bundle_loads_total{result="refused"}') == 1.0)


async def test_a_bundle_that_appears_later_is_found(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned", "options": {"shipped": False}},
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.02},
    }
    async with rig(GOOD, **sections) as (router, _):
        assert (await router.post())[2]["x-steersman-fallback"] == "no_model"
        policy_bundle(bundle, "v1")
        await eventually(lambda: router.parts.models.version == "v1")
        assert (await router.post())[2].get("x-steersman-fallback") is None


async def test_the_shipped_policy_serves_from_the_first_request_until_there_is_another(
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "champion"
    version = load_shipped().version
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned", "exploration": 0.0},
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.02},
    }
    async with rig(GOOD, GOOD, **sections) as (router, _):
        served = f'steersman_bundle_info{{version="{version}"}}'
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "learned"
        assert "x-steersman-fallback" not in headers
        assert await router.metric(served) == 1.0
        write_bundle(bundle, {}, version="predictors", code_version="0", created=MADE)
        await eventually(lambda: router.parts.models.version == "predictors")
        _, _, headers = await router.post()
        assert headers["x-steersman-policy"] == "learned"
        assert "x-steersman-fallback" not in headers
        assert await router.metric(served) == 0.0


async def test_a_damaged_installation_costs_the_shipped_policy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy_bundle(tmp_path / "shipped", "v1")
    (tmp_path / "shipped" / POLICY_FILE).write_bytes(b"garbage")
    monkeypatch.setattr(shipped, "DIRECTORY", tmp_path / "shipped")
    async with rig(GOOD, policy={"name": "learned"}) as (router, _):
        status, _, headers = await router.post()
        assert status == 200
        assert headers["x-steersman-fallback"] == "no_model"
        assert await router.metric('steersman_bundle_loads_total{result="refused"}') == 1.0
    assert "the shipped policy is refused" in caplog.text


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"name": "p3c"}, "did you mean 'p2c'?"),
        ({"name": "learned", "explore": 0.1}, "did you mean 'exploration'?"),
        ({"name": "learned", "options": {"ship": True}}, "did you mean 'shipped'?"),
        ({"name": "p2c", "options": {"utilization_weight": 1}}, "utilisation_weight"),
    ],
)
def test_a_misspelt_policy_is_refused_at_the_start(policy: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        create_app(settings_for([], backends=[{"url": "http://a"}], policy=policy))


def test_a_misspelt_fallback_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="p2c"):
        create_app(
            settings_for(
                [],
                backends=[{"url": "http://a"}],
                policy={"name": "learned"},
                guard={"fallbacks": ["p2cc"]},
            )
        )


async def test_what_is_logged_was_predicted_by_the_bundles_latency_model(tmp_path: Path) -> None:
    bundle, log = tmp_path / "champion", tmp_path / "log"
    columns = ["prefill_token_s", "input_tokens", "decode_base_s", "decode_base_s"]
    files = {LATENCY_FILE: answering(columns)}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    write_bundle(bundle, files, version="v1", code_version="0", created=at)
    sections = {"bundle": {"directory": str(bundle)}, "outcome_log": {"directory": str(log)}}
    async with rig(GOOD, **sections) as (router, _):
        await router.post()
        profile = router.parts.fleet.replicas[0].profile
    (record,) = read_outcomes(log)
    assert record.ttft_p50_s == pytest.approx(max(profile.prefill_token_s, LEAST_S), rel=1e-5)
    assert record.ttft_p90_s == pytest.approx(record.request_features[0], rel=1e-5)
    assert record.tpot_p50_s == pytest.approx(profile.decode_base_s, rel=1e-5)


async def test_another_latency_model_begins_with_a_width_of_its_own(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    at = datetime(2026, 1, 1, tzinfo=UTC)
    write_bundle(bundle, {}, version="v1", code_version="0", created=at)
    sections = {"bundle": {"directory": str(bundle), "watch_interval_s": 0.02}}
    async with rig(stream(events(6)), **sections) as (router, _):
        shown = 'steersman_prediction_width{model="m",target="tpot"}'
        await router.post(chat(stream=True))
        models, learned = router.parts.models, router.parts.models.widths("m")
        assert learned.ttft.log != 0.0
        assert await router.metric(shown) == pytest.approx(math.exp(learned.tpot.log))
        write_bundle(bundle, {}, version="v2", code_version="0", created=at)
        await eventually(lambda: models.version == "v2")
        assert models.widths("m") is learned, "nothing that predicts latencies has changed"
        files = {LATENCY_FILE: answering(["ttft_s", "ttft_s", "tpot_s", "tpot_s"])}
        write_bundle(bundle, files, version="v3", code_version="0", created=at)
        await eventually(lambda: models.version == "v3")
        assert models.widths("m").tpot.log == 0.0
        assert await router.metric(shown) == 1.0
