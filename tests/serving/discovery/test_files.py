"""Replicas listed in a file that changes while requests are under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.serving.backends import Backend, backends, completion, events, stream, whole
from tests.serving.harness import Routed, chat, eventually, routing, settings_for

GOOD = whole(completion())


def write(path: Path, *replicas: Backend, **more: Any) -> None:
    """As a careful tool does: a new file in place of the old one."""
    entries = {"backends": [{"id": b.name, "url": b.url} | more for b in replicas]}
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(entries), encoding="utf-8")
    fresh.replace(path)


def found_in(path: Path, **sections: Any) -> Any:
    discovery = {"files": [{"path": str(path), "interval_s": 0.05}]}
    return settings_for([], discovery=discovery, **sections)


def ids(router: Routed) -> list[str]:
    return [replica.id for replica in router.parts.fleet.replicas]


async def served_by(router: Routed, count: int = 4) -> set[str]:
    answers = [await router.post() for _ in range(count)]
    assert {status for status, _, _ in answers} == {200}
    return {headers["x-steersman-replica"] for _, _, headers in answers}


async def test_replicas_come_and_go_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD, GOOD) as (first, second):
        write(path, first)
        async with routing(found_in(path)) as router:
            assert await served_by(router) == {"b0"}
            write(path, first, second)
            await eventually(lambda: ids(router) == ["b0", "b1"])
            await eventually(lambda: router.parts.fleet.replicas[1].health.healthy)
            assert await served_by(router) == {"b0", "b1"}
            write(path, second)
            await eventually(lambda: ids(router) == ["b1"])
            assert await served_by(router) == {"b1"}
            _, page = await router.get("/metrics")
            assert b'replica="b0"' not in page
            assert b"steersman_replica_healthy{" in page
            assert await router.metric('steersman_pool_replicas{model="m"}') == 1.0


async def test_a_replica_that_leaves_finishes_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    slow = stream(events(20), delay_s=0.02)
    async with backends(slow, GOOD) as (first, second):
        write(path, first)
        async with routing(found_in(path)) as router:
            asking = asyncio.create_task(router.post(chat(stream=True)))
            await eventually(lambda: len(first.received) == 1)
            write(path, second)
            await eventually(lambda: ids(router) == ["b0", "b1"])
            await eventually(lambda: router.parts.fleet.replicas[1].health.healthy)
            assert await served_by(router) == {"b1"}
            status, got, headers = await asking
            assert (status, got) == (200, b"".join(events(20)))
            assert headers["x-steersman-replica"] == "b0"
            await eventually(lambda: ids(router) == ["b1"])


@pytest.mark.parametrize("text", ["- url: nonsense", "{", "", "[]", "- {url: http://a:1, colour: 1}"])
async def test_a_file_that_is_wrong_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD) as fleet:
        write(path, *fleet)
        async with routing(found_in(path)) as router:
            path.write_text(text, encoding="utf-8")
            failed = f'steersman_discovery_total{{result="failed",source="file {path}"}}'
            await eventually(lambda: _above(router, failed, 1.0))
            path.unlink()
            await eventually(lambda: _above(router, failed, 2.0))
            assert await served_by(router) == {"b0"}


async def _above(router: Routed, name: str, least: float) -> bool:
    return await router.metric(name) >= least


async def test_before_there_is_a_file_the_answer_is_try_again(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD) as fleet, routing(found_in(path)) as router:
        status, _, headers = await router.post()
        assert (status, "retry-after" in headers) == (503, True)
        write(path, *fleet)
        await eventually(lambda: ids(router) == ["b0"])
        await eventually(lambda: router.parts.fleet.replicas[0].health.healthy)
        assert await served_by(router) == {"b0"}


async def test_a_model_whose_replicas_all_left_is_not_unknown(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD) as fleet:
        write(path, *fleet)
        async with routing(found_in(path)) as router:
            write(path)
            await eventually(lambda: ids(router) == [])
            status, got, headers = await router.post()
            assert (status, b"no_healthy_replica" in got, "retry-after" in headers) == (503, True, True)


async def test_settings_that_change_replace_the_replica_without_a_failed_request(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD) as fleet:
        write(path, *fleet)
        async with routing(found_in(path)) as router:
            before = router.parts.fleet.replicas[0]

            async def load() -> None:
                for _ in range(40):
                    status, _, _ = await router.post()
                    assert status == 200
                    await asyncio.sleep(0.01)

            loading = asyncio.create_task(load())
            write(path, *fleet, weight=3.0)
            await loading
            await eventually(lambda: ids(router) == ["b0"])
            assert router.parts.fleet.replicas[0] is not before
            assert router.parts.fleet.replicas[0].settings.weight == 3.0
