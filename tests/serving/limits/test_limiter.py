from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.access.caller import ANYBODY, Caller
from steersman.serving.access.settings import RateSettings
from steersman.serving.errors import ApiError
from steersman.serving.limits.limiter import NO_GRANT, Limiter, duration
from steersman.serving.limits.memory import MemoryLimits
from steersman.serving.metrics import RouterMetrics


class Rig:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.metrics = RouterMetrics()
        self.limiter = Limiter(MemoryLimits(lambda: self.now_s), self.metrics)

    async def refusal(self, caller: Caller, tokens: float = 1.0) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await self.limiter.admit(caller, "r", tokens)
        return refused.value


def caller(**rates: Any) -> Caller:
    return Caller("k", "search", rates=RateSettings(**rates))


async def test_who_has_no_limits_costs_nothing() -> None:
    rig = Rig()
    assert await rig.limiter.admit(ANYBODY, "r", 1e12) is NO_GRANT
    rig.limiter.settle(NO_GRANT, 5.0)


async def test_requests_per_minute() -> None:
    rig = Rig()
    told = [
        dict((await rig.limiter.admit(caller(requests_per_minute=2), "r", 1)).headers) for _ in range(2)
    ]
    assert told[0] == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"30s",
    }
    assert told[1][b"x-ratelimit-reset-requests"] == b"1m0s"
    error = await rig.refusal(caller(requests_per_minute=2))
    body = orjson.loads(error.body)["error"]
    assert (error.status, body["type"], body["code"]) == (429, "requests", "rate_limit_exceeded")
    headers = dict(error.headers)
    assert headers[b"retry-after"] == b"30"
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    rig.now_s += 30.0
    await rig.limiter.admit(caller(requests_per_minute=2), "r", 1)
    assert b'steersman_limited_total{limit="requests",scope="key"} 1.0' in rig.metrics.page()


async def test_tokens_are_predicted_at_the_door_and_settled_at_the_end() -> None:
    rig, me = Rig(), caller(tokens_per_minute=60)
    grant = await rig.limiter.admit(me, "r", 50.0)
    assert (await rig.refusal(me, 50.0)).retry_after_s == pytest.approx(40.0)
    rig.limiter.settle(grant, 8.0)
    assert (
        dict((await rig.limiter.admit(me, "r", 50.0)).headers)[b"x-ratelimit-remaining-tokens"] == b"2"
    )


async def test_concurrent_requests() -> None:
    rig, me = Rig(), caller(concurrent=1)
    grant = await rig.limiter.admit(me, "r1", 1.0)
    error = await rig.refusal(me)
    assert (error.retry_after_s, error.kind) == (1.0, "concurrent")
    rig.limiter.settle(grant, 0.0)
    await rig.limiter.admit(me, "r2", 1.0)


async def test_a_tenant_s_limit_is_over_all_its_keys() -> None:
    rig = Rig()
    rates = RateSettings(tokens_per_minute=100)
    ann, bob = (Caller(key, "search", tenant_rates=rates) for key in ("ann", "bob"))
    await rig.limiter.admit(ann, "r", 80.0)
    error = await rig.refusal(bob, 80.0)
    assert "of this tenant" in error.message
    other = Caller("eve", "ads", tenant_rates=rates)
    await rig.limiter.admit(other, "r", 80.0)


async def test_of_key_and_tenant_the_headers_tell_who_has_less() -> None:
    me = Caller(
        "k",
        "search",
        rates=RateSettings(tokens_per_minute=1000),
        tenant_rates=RateSettings(tokens_per_minute=100),
    )
    grant = await Rig().limiter.admit(me, "r", 60.0)
    assert dict(grant.headers)[b"x-ratelimit-remaining-tokens"] == b"40"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0121, "13ms"), (1.5, "1.5s"), (20.0, "20s"), (360.0, "6m0s"), (3723.0, "1h2m3s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.lists(st.floats(0, 500), max_size=30), st.floats(1, 1000), st.data())
def test_nobody_gets_more_than_the_rate_and_one_burst(
    costs: list[float], per_minute: float, data: st.DataObject
) -> None:
    import asyncio

    async def play() -> None:
        rig, me = Rig(), caller(tokens_per_minute=per_minute)
        spent = 0.0
        for cost in costs:
            rig.now_s += data.draw(st.floats(0, 30))
            try:
                grant = await rig.limiter.admit(me, "r", cost)
            except ApiError:
                continue
            real = data.draw(st.floats(0, cost))
            rig.limiter.settle(grant, real)
            spent += real
        # The last may have left a debt.
        assert spent <= per_minute * (1.0 + rig.now_s / 60.0) + max(costs, default=0.0) + 1e-6

    asyncio.run(play())
