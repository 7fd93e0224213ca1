"""The queue before emulated engines: what a class gains does not depend on how fast the machine is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import orjson
import pytest

from steersman.predictors import ledger as L
from steersman.serving.config import RouterSettings
from steersman.traces.settings import parse_settings
from tests.serving.harness import CHAT, Routed, chat, eventually, routing
from tests.support.emulated import PROFILE, emulated

MODEL = "llama-3.1-8b"
SLOTS = 2
CROWD = 24
KEEP_BUSY = 5000
"""Tokens of the answers that occupy the engines until everybody has arrived."""


@pytest.mark.parametrize("policy", ["p2c"])
async def test_the_highest_class_comes_first_and_all_are_served(policy: str) -> None:
    """Those who came last: engines that know no classes serve them last."""
    places = {}
    for enabled in (False, True):
        order = await _order(policy, enabled)
        assert len(order) == CROWD
        places[enabled] = [np.mean(np.flatnonzero(np.array(order) == level)) for level in range(4)]
    assert places[True] == sorted(places[True])
    assert places[True][0] < 0.4 * places[False][0]


async def _order(policy: str, enabled: bool) -> list[int]:
    """The classes of a crowd, the lowest sent first, in the order of their first tokens."""
    async with emulated(max_num_seqs=SLOTS) as one, emulated(max_num_seqs=SLOTS) as other:
        backends = [
            {"id": name, "url": url, "models": [MODEL], "max_num_seqs": SLOTS, "profile": PROFILE}
            for name, url in (("one", one), ("other", other))
        ]
        values: dict[str, Any] = {
            "port": 0,
            "backends": backends,
            "policy": {"name": policy},
            "queue": {"enabled": enabled},
        }
        async with routing(parse_settings(values, RouterSettings, source="test")) as router:
            ignored: list[int] = []
            busy = [asyncio.create_task(_ask(router, 0, KEEP_BUSY, ignored)) for _ in range(2 * SLOTS)]
            await eventually(lambda: len(ignored) == len(busy), within_s=60.0)
            order: list[int] = []
            async with asyncio.TaskGroup() as tasks:
                for i in range(CROWD):
                    tasks.create_task(_ask(router, 3 - i * 4 // CROWD, 6, order))
                    await eventually(lambda i=i: _inside(router) == len(busy) + i + 1, within_s=60.0)
                for task in busy:
                    task.cancel()
            for task in busy:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            return order


def _inside(router: Routed) -> int:
    """Requests that wait in the router, or are with an engine."""
    parts = router.parts
    return parts.waiting_room.waiting + int(parts.fleet.state[:, L.INFLIGHT].sum())


async def _ask(router: Routed, priority: int, tokens: int, order: list[int]) -> None:
    body = chat("hello", stream=True, max_tokens=tokens, ignore_eos=True, model=MODEL)
    headers = {"content-type": "application/json", "x-steersman-priority": str(priority)}
    async with router.client.post(router.url + CHAT, data=orjson.dumps(body), headers=headers) as answer:
        assert answer.status == 200
        text = await answer.content.readany()
        order.append(priority)
        text += await answer.read()
        assert text.rstrip().endswith(b"data: [DONE]")
