"""A replica dies under load: nothing that had not begun to answer is lost, and it comes back."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from dataclasses import replace

import numpy as np

from steersman.serving.replay import ReplaySettings, replay
from steersman.traces.schema import Request, Status
from steersman.traces.trace import Trace
from tests.e2e.conftest import Backends, Router

RATE_RPS = 12.0
VICTIM = 0  # the fastest, which gets the most


def steady(duration_s: float, *, output_tokens: int) -> Trace:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / RATE_RPS, int(duration_s * RATE_RPS)))
    base = Request("", 0.0, 2000, output_tokens=output_tokens)  # some are in prefill at any time
    requests = [replace(base, request_id=f"r{i}", arrival_s=float(at)) for i, at in enumerate(arrivals)]
    return Trace.from_requests("steady", requests)


def healthy_replicas(router: Router) -> set[str]:
    with urllib.request.urlopen(f"{router.url}/health", timeout=5) as response:
        report = json.loads(response.read())
    return {name for name, replica in report["replicas"].items() if replica["healthy"]}


def wait_for_replicas(router: Router, wanted: set[str]) -> None:
    deadline = time.monotonic() + 15
    while healthy_replicas(router) != wanted:
        assert time.monotonic() < deadline, f"{healthy_replicas(router)} instead of {wanted}"
        time.sleep(0.05)


async def test_a_killed_backend_costs_only_what_it_had_begun(backends: Backends, router: Router) -> None:
    victim = backends.ids[VICTIM]
    wait_for_replicas(router, set(backends.ids))
    replaying = asyncio.create_task(
        replay(steady(6.0, output_tokens=80), ReplaySettings(url=router.url))
    )
    await asyncio.sleep(2.0)
    await asyncio.to_thread(backends.kill, VICTIM)
    try:
        result = await replaying
        lost = [i for i, status in enumerate(result.status) if status is not Status.OK]
        assert all(result.began[i] for i in lost), [result.error[i] for i in lost]
        assert all(result.replica[i] == victim for i in lost)
        after = [
            name for name, sent_s in zip(result.replica, result.scheduled_s, strict=True) if sent_s > 3.0
        ]
        assert victim not in after
        assert len(set(after)) == 2
        await asyncio.to_thread(wait_for_replicas, router, set(backends.ids) - {victim})
    finally:
        await asyncio.to_thread(backends.start, VICTIM)
    await asyncio.to_thread(wait_for_replicas, router, set(backends.ids))
    again = await replay(steady(2.0, output_tokens=20), ReplaySettings(url=router.url))
    assert set(again.status) == {Status.OK}
    assert victim in again.replica
