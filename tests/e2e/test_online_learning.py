"""Backends slow down under a router: it has its predictors refitted, and no request fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from steersman.agents.refit.refit import previous_of
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, load_bundle
from steersman.serving.config import RouterSettings
from steersman.traces.settings import parse_settings
from tests.serving.graphs import policy_bundle
from tests.serving.harness import Routed, eventually, routing
from tests.support.emulated import PROFILE, emulated

AT_ONCE = 12
SLOWDOWNS = (8.0, 32.0, 128.0, 512.0)
SECTIONS: dict[str, Any] = {
    "port": 0,
    "policy": {"name": "p2c"},
    "scrape": {"interval_s": 0.1},
    "health": {"interval_s": 0.5},
    "timeouts": {"drain_s": 1.0},
}


class NotWithinError(AssertionError):
    """So many requests did not bring it about."""


def settings_for(directory: Path, bundle: Path, *urls: str) -> RouterSettings:
    sections = SECTIONS | {
        "backends": [{"id": f"b{i}", "url": url, "profile": PROFILE} for i, url in enumerate(urls)],
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.1},
        "outcome_log": {"directory": str(directory / "log"), "flush_interval_s": 0.1},
        "refit": {"enabled": True, "min_outcomes": 520, "min_interval_s": 0.0},
    }
    return parse_settings(sections, RouterSettings, source="test")


async def ask(router: Routed, number: int) -> None:
    """Answers are as long as prompts make one expect: something that can be learned."""
    words = 5 + 37 * number % 200
    body = {
        "model": "llama-3.1-8b",
        "messages": [{"role": "user", "content": "word " * words}],
        "stream": True,
        "vllm_xargs": {"output_tokens": 2 + words // 20},
    }
    status, answer, _ = await router.post(body)
    assert status == 200
    assert answer.rstrip().endswith(b"data: [DONE]")


async def ask_until(
    router: Routed,
    enough: Callable[[], bool | Awaitable[bool]],
    most: int,
    *,
    pause_s: float = 0.0,
) -> int:
    """Requests, a few at once, until a condition holds."""
    for start in range(0, most, AT_ONCE):
        await asyncio.sleep(pause_s)
        await asyncio.gather(*(ask(router, start + i) for i in range(AT_ONCE)))
        met = enough()
        if met if isinstance(met, bool) else await met:
            return start + AT_ONCE
    raise NotWithinError(f"it did not happen within {most} requests")


async def slow_down_until_it_shows(router: Routed, url: str) -> None:
    """A busy machine takes its own time for every token, which hides a small change of the engine's; the
    bias corrector follows a factor of five. So the engine slows down until neither does."""
    for factor in SLOWDOWNS:
        await slow_down(url, factor)
        with contextlib.suppress(NotWithinError):
            await ask_until(router, lambda: bool(router.parts.errors.drifted), 480)
            return
    raise AssertionError(f"no drift was seen when the engine became {SLOWDOWNS[-1]:g} times slower")


async def slow_down(url: str, factor: float) -> None:
    faults = f"{url}/emulator/faults"
    async with (
        aiohttp.ClientSession() as client,
        client.post(faults, json={"slowdown": factor}) as answer,
    ):
        assert answer.status == 200


async def test_drift_leads_to_a_better_bundle_and_no_request_fails(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v1")
    async with (
        emulated(speed=20.0) as url,
        routing(settings_for(tmp_path, bundle, url)) as router,
    ):
        parts = router.parts
        refit = parts.refit
        assert refit is not None
        await ask_until(router, lambda: parts.errors.outcomes >= 290, 1_000)
        await slow_down_until_it_shows(router, url)
        # Its first worker dies in the middle of its work.
        await ask_until(router, lambda: refit.worker is not None, 3_000)
        await eventually((tmp_path / ".champion.lock").exists, within_s=30.0)
        assert refit.worker is not None
        os.kill(refit.worker.process.pid, signal.SIGKILL)
        await eventually(lambda: _refits(router, "failed", "killed"), within_s=10.0)
        assert load_bundle(bundle).version == "v1"
        # The next one makes a better model, while requests are answered.
        await ask_until(router, lambda: parts.models.version.endswith("-refit"), 6_000, pause_s=0.2)
        await eventually(lambda: refit.worker is None)
        page = (await router.get("/metrics"))[1].decode()
        # Either model, or both: whose drift is told first is a matter of load.
        assert re.search(r'steersman_refits_total\{reason="[a-z+]+",result="replaced"\} 1\.0', page)
        assert 'steersman_prediction_drift_alarms_total{hardware="' in page
        assert parts.models.latency.version or parts.models.length.version
        await ask(router, 1)
    served = load_bundle(bundle)
    assert {LATENCY_FILE, LENGTH_FILE} & set(served.contents)
    assert POLICY_FILE in served.contents
    assert load_bundle(previous_of(bundle)).version == "v1"


async def test_a_bundle_that_cannot_be_replaced_hurts_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with emulated(speed=50.0) as url:
        settings = settings_for(tmp_path, tmp_path / "file" / "champion", url)
        regular = settings.refit.model_copy(update={"interval_s": 0.5, "min_outcomes": 1})
        async with routing(settings.model_copy(update={"refit": regular})) as router:
            await ask_until(router, lambda: _refits(router, "failed", "error"), 5_000, pause_s=0.2)
            await ask(router, 1)


async def _refits(router: Routed, result: str, reason: str) -> bool:
    return await router.metric(f'steersman_refits_total{{reason="{reason}",result="{result}"}}') > 0.0
