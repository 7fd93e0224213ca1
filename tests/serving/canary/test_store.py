from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from steersman.serving.canary.state import CanaryState, Phase
from steersman.serving.canary.store import FileStore, SharedStore, StoreDown
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.server import SharedServer
from steersman.serving.shared.settings import SharedSettings
from tests.support.valkey import valkey


def count(state: CanaryState) -> None:
    state.stage += 1


def nothing(state: CanaryState) -> None:
    del state


def shared(url: str, **more: Any) -> SharedServer:
    return SharedServer(SharedSettings(url=url, timeout_s=5.0, retry_s=0.05, **more), RouterMetrics())


def test_no_change_of_many_processes_is_lost(tmp_path: Path) -> None:
    stores = [FileStore(tmp_path / "deep" / "canary.json") for _ in range(4)]
    threads = [
        threading.Thread(target=lambda store=store: [store.update_now(count) for _ in range(10)])
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state, _ = stores[0].update_now(nothing)
    assert (state.stage, state.revision) == (40, 40)


def test_what_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "canary.json")
    store.update_now(count)
    before = store.path.stat()
    store.update_now(nothing)
    assert store.path.stat() == before


async def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "canary.json")
    store.update_now(count)

    def fail(state: CanaryState) -> None:
        state.stage = 99
        raise KeyError

    with pytest.raises(KeyError):
        await store.update(fail)
    assert (await store.last_known()).stage == 1


async def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FileStore(tmp_path / "file" / "canary.json")
    with pytest.raises(StoreDown):
        await store.update(count)
    assert (await store.last_known()).phase is Phase.IDLE


async def test_no_change_of_many_routers_is_lost_on_the_server(tmp_path: Path) -> None:
    with valkey() as server:
        servers = [shared(server.url) for _ in range(3)]
        copies = [FileStore(tmp_path / f"{i}.json") for i in range(3)]
        stores = [SharedStore(one, copy) for one, copy in zip(servers, copies, strict=True)]
        for _ in range(5):
            await asyncio.gather(*(store.update(count) for store in stores))
        state, _ = await stores[0].update(nothing)
        assert state.stage == 15
        assert await copies[0].last_known() == state
        server.kill()
        with pytest.raises(StoreDown, match="does not answer"):
            await stores[1].update(count)
        assert (await stores[0].last_known()).stage == 15
        for one in servers:
            await one.close()


async def test_what_is_damaged_on_the_server_is_begun_anew() -> None:
    with valkey() as running:
        server = shared(running.url)
        await server.ask("SET", server.name("canary"), "{damaged")
        store = SharedStore(server)
        state, _ = await store.update(count)
        assert state.stage == 1
        assert (await store.last_known()).phase is Phase.IDLE, "it keeps no copy"
        await server.close()


def ran(revision: int, phase: Phase, *, began_s: float = 1.0) -> CanaryState:
    return CanaryState(revision=revision, phase=phase, challenger="b2", started_unix_s=began_s)


def test_what_was_lost_is_restored_but_an_end_is_an_end() -> None:
    state = CanaryState()
    state.restore(ran(7, Phase.RUNNING))
    assert (state.phase, state.revision) == (Phase.RUNNING, 7)
    ended = ran(3, Phase.ROLLED_BACK)
    ended.restore(ran(7, Phase.RUNNING))
    assert ended.revision == 3
    ended.restore(ran(7, Phase.RUNNING, began_s=2.0))
    assert ended.revision == 7, "that is another one"
    newer = ran(9, Phase.RUNNING)
    newer.restore(ran(7, Phase.ROLLED_BACK))
    assert newer.phase is Phase.RUNNING
