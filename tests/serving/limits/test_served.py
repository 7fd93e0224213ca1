"""Limits at a router that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.serving.access.keys import bearer, make_key, write_keys
from tests.serving.backends import completion, events, silent, stream, whole
from tests.serving.harness import chat, eventually, rig, routing, settings_for
from tests.support.valkey import valkey


def limited(tmp_path: Path, **limits: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers of a key with these limits, and the section that names its file."""
    key, entry = make_key(limits=limits)
    return bearer(key), {"key_file": str(write_keys(tmp_path / "keys.yaml", entry))}


async def test_over_the_limit_a_client_of_openai_s_knows_what_to_do(tmp_path: Path) -> None:
    key, entry = make_key(limits={"requests_per_minute": 2})
    file = write_keys(tmp_path / "keys.yaml", entry)
    async with rig(whole(completion()), access={"key_file": str(file)}) as (router, (backend,)):
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=key, max_retries=0) as client:
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=[])
            assert raw.headers["x-ratelimit-remaining-requests"] == "1"
            await client.chat.completions.create(model="m", messages=[])
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="m", messages=[])
            assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
            assert 29 <= int(refused.value.response.headers["retry-after"]) <= 30
        assert len(backend.received) == 2


async def test_the_tokens_that_were_used_are_charged(tmp_path: Path) -> None:
    mine, access = limited(tmp_path, tokens_per_minute=60)
    async with rig(stream(events(6)), access=access) as (router, _):
        start_s = router.parts.clock()
        _, _, told = await router.post(chat(stream=True, max_tokens=30), headers=mine)
        assert int(told["x-ratelimit-remaining-tokens"]) < 40
        store: Any = router.parts.limiter._store
        await eventually(lambda: store._buckets)
        ((level, at_s),) = store._buckets.values()
        # 11 prompt tokens and 6 of the answer, as the backend says; one flows in every second.
        assert 60 - 17 <= level <= 60 - 17 + at_s - start_s


async def test_who_gets_no_answer_pays_nothing(tmp_path: Path) -> None:
    mine, access = limited(tmp_path, tokens_per_minute=100_000, concurrent=1)
    async with rig(whole(b"{}", status=500), access=access) as (router, _):
        for _ in range(3):
            status, _, headers = await router.post(headers=mine)
            assert status == 500
        assert int(headers["x-ratelimit-remaining-tokens"]) > 99_000


async def test_a_place_is_free_when_the_client_goes_away(tmp_path: Path) -> None:
    mine, access = limited(tmp_path, concurrent=1)
    async with rig(silent, access=access) as (router, (backend,)):
        waiting = asyncio.create_task(router.post(headers=mine))
        await eventually(lambda: backend.received)
        status, body, headers = await router.post(headers=mine)
        assert (status, orjson.loads(body)["error"]["type"]) == (429, "concurrent")
        assert headers["retry-after"] == "1"
        waiting.cancel()
        backend.answer = whole(completion())

        async def served() -> bool:
            return (await router.post(headers=mine))[0] == 200

        await eventually(served)


async def test_two_routers_share_limits_and_go_on_without_their_server(tmp_path: Path) -> None:
    mine, access = limited(tmp_path, requests_per_minute=2)
    with valkey() as server:
        shared = {"url": server.url, "timeout_s": 0.5, "retry_s": 60.0}
        async with (
            rig(whole(completion()), access=access, shared=shared) as (one, fleet),
            routing(settings_for(fleet, access=access, shared=shared)) as other,
        ):
            statuses = [(await router.post(headers=mine))[0] for router in (one, other, one, other)]
            assert statuses == [200, 200, 429, 429]
            server.kill()
            assert (await one.post(headers=mine))[0] == 200
            assert await one.metric("steersman_shared_up") == 0.0
            assert await one.metric("steersman_limits_alone_total") == 1.0
