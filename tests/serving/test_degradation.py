"""What is served when nobody serves the model that was asked for."""

from __future__ import annotations

import orjson
import pytest

from steersman.serving.config import RouterSettings
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings
from tests.serving.backends import Backend, backends, completion, events, reset, stream, whole
from tests.serving.harness import chat, eventually, routing, settings_for

GOOD = whole(completion())
BAD = whole(b"{}", status=503)
STAIRS = {"large": ["gone", "small", "tiny"]}


def settings(fleet: list[Backend], *models: str) -> RouterSettings:
    listed = [
        {"id": b.name, "url": b.url, "models": [model]} for b, model in zip(fleet, models, strict=True)
    ]
    return settings_for([], backends=listed, fallback_models=STAIRS, aliases={"best": "large"})


@pytest.mark.parametrize("asked", ["large", "best"])
async def test_a_smaller_model_answers_while_the_large_one_is_down(asked: str) -> None:
    async with backends(GOOD, GOOD) as fleet, routing(settings(fleet, "large", "small")) as router:
        _, _, headers = await router.post(chat() | {"model": asked})
        assert headers["x-steersman-replica"] == "b0"
        assert "x-steersman-degraded" not in headers
        fleet[0].health_status = 503
        await eventually(lambda: not router.parts.fleet.replicas[0].health.healthy)
        status, got, headers = await router.post(chat() | {"model": asked})
        assert (status, got) == (200, completion())
        assert headers["x-steersman-degraded"] == "model=small"
        assert headers["x-steersman-replica"] == "b1"
        assert orjson.loads(fleet[1].received[-1].body)["model"] == "small"
        assert await router.metric('steersman_degraded_total{by="small",model="large"}') == 1.0
        fleet[0].health_status = 200
        await eventually(lambda: router.parts.fleet.replicas[0].health.healthy)
        assert "x-steersman-degraded" not in (await router.post(chat() | {"model": asked}))[2]


async def test_it_answers_when_all_who_were_asked_failed_before_the_first_byte() -> None:
    text = b"".join(events(3))
    async with (
        backends(BAD, reset, stream([text])) as fleet,
        routing(settings(fleet, "large", "large", "small")) as router,
    ):
        status, got, headers = await router.post(chat(stream=True) | {"model": "large"})
        assert (status, got) == (200, text)
        assert headers["x-steersman-degraded"] == "model=small"
        assert not router.parts.fleet.state[:, 17:22].any(), "the account is balanced"


async def test_it_answers_when_some_are_down_and_the_others_fail() -> None:
    models = ("large", "large", "small")
    async with backends(GOOD, BAD, GOOD) as fleet, routing(settings(fleet, *models)) as router:
        fleet[0].health_status = 503
        await eventually(lambda: not router.parts.fleet.replicas[0].health.healthy)
        assert (await router.post(chat() | {"model": "large"}))[2]["x-steersman-replica"] == "b2"


async def test_a_busy_model_is_not_replaced() -> None:
    busy = whole(b"{}", status=429)
    async with backends(busy, GOOD) as fleet, routing(settings(fleet, "large", "small")) as router:
        assert (await router.post(chat() | {"model": "large"}))[0] == 429
        assert not fleet[1].received


async def test_one_step_after_the_other_and_then_a_friendly_503() -> None:
    async with (
        backends(BAD, BAD, GOOD) as fleet,
        routing(settings(fleet, "large", "small", "tiny")) as router,
    ):
        _, _, headers = await router.post(chat("one") | {"model": "large"})
        assert headers["x-steersman-degraded"] == "model=tiny"
        for backend in fleet:
            backend.health_status = 503
        await eventually(lambda: not any(r.health.healthy for r in router.parts.fleet.replicas))
        status, got, headers = await router.post(chat("two") | {"model": "large"})
        error = orjson.loads(got)["error"]
        assert (status, error["code"]) == (503, "no_healthy_replica")
        assert "'large', nor of what stands in for it" in error["message"]
        assert headers["x-steersman-degraded"] == "no-replica"
        assert int(headers["retry-after"]) >= 1


async def test_a_model_whose_replicas_have_all_been_removed() -> None:
    async with backends(GOOD, GOOD) as fleet, routing(settings(fleet[1:], "small")) as router:
        _, _, headers = await router.post(chat() | {"model": "large"})
        assert headers["x-steersman-degraded"] == "model=small"
        assert (await router.post(chat() | {"model": "unheard-of"}))[0] == 404


async def test_a_model_that_names_none_is_not_replaced() -> None:
    async with backends(GOOD, GOOD) as fleet, routing(settings(fleet, "large", "small")) as router:
        fleet[1].health_status = 503
        await eventually(lambda: not router.parts.fleet.replicas[1].health.healthy)
        status, _, headers = await router.post(chat() | {"model": "small"})
        assert (status, headers["x-steersman-degraded"]) == (503, "no-replica")
        assert not fleet[0].received


@pytest.mark.parametrize("stairs", [{"a": ["a"]}, {"a": ["b", "b"]}])
def test_a_model_is_not_replaced_by_itself(stairs: dict[str, list[str]]) -> None:
    values = {"backends": [{"url": "http://x"}], "fallback_models": stairs}
    with pytest.raises(ConfigError, match="by itself, or twice"):
        parse_settings(values, RouterSettings, source="test")
