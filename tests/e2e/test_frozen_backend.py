"""A replica freezes under load: it takes connections and answers nothing. Settings are the defaults."""

from __future__ import annotations

import asyncio
from pathlib import Path

from steersman.serving.replay import ReplaySettings, replay
from steersman.traces.schema import Status
from tests.e2e.conftest import Backends, router_config, serve_router
from tests.e2e.test_lost_backend import VICTIM, steady, wait_for_replicas

FREEZE_AT_S = 1.5
NOTICED_WITHIN_S = 4.0
"""Twice the silence that is waited for, and a scrape; before, it was 15 to 20 s."""


async def test_a_frozen_backend_loses_no_request_and_soon_gets_none(
    backends: Backends, tmp_path: Path
) -> None:
    victim = backends.ids[VICTIM]
    config = router_config(backends)
    del config["health"]
    with serve_router(tmp_path / "router.yaml", config) as router:
        wait_for_replicas(router, set(backends.ids))
        replaying = asyncio.create_task(
            replay(steady(9.0, output_tokens=20), ReplaySettings(url=router.url, timeout_s=30.0))
        )
        await asyncio.sleep(FREEZE_AT_S)
        backends.freeze(VICTIM)
        try:
            result = await replaying
            lost = [i for i, status in enumerate(result.status) if status is not Status.OK]
            waited = [i for i in lost if not result.began[i]]
            assert not waited, (
                f"{len(waited)} that had not begun were not answered elsewhere, the last sent "
                f"{max(result.scheduled_s[waited]) - FREEZE_AT_S:.1f} s after the freeze"
            )
            late = [
                name
                for name, sent_s in zip(result.replica, result.scheduled_s, strict=True)
                if sent_s > FREEZE_AT_S + NOTICED_WITHIN_S
            ]
            assert len(late) > 20
            assert victim not in late
        finally:
            backends.thaw(VICTIM)
        await asyncio.to_thread(wait_for_replicas, router, set(backends.ids))
