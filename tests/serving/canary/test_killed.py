"""A router that is killed, and started again by its supervisor: the canary is where it was."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path

import yaml

from steersman.serving.canary.state import CanaryState, read_state
from tests.serving.backends import backends, completion, whole
from tests.support.processes import ServerProcess, free_port, run_cli


def state_in(path: Path) -> CanaryState:
    return read_state(path.read_bytes() if path.exists() else None)


def wait_for(path: Path, revision: int) -> CanaryState:
    deadline_s = time.monotonic() + 60.0
    while (state := state_in(path)).revision < revision or not state.running:
        assert time.monotonic() < deadline_s, state
        time.sleep(0.02)
    return state


def share_at(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30.0) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("steersman_canary_share "))


async def test_a_router_that_is_killed_goes_on_with_its_canary(tmp_path: Path) -> None:

    port, path = free_port(), tmp_path / "canary.json"
    url = f"http://127.0.0.1:{port}"
    async with backends(whole(completion())) as (backend,):
        values = {
            "port": port,
            "policy": {"name": "round-robin"},
            "backends": [{"id": "b", "url": backend.url, "models": ["m"]}],
            "canary": {
                "enabled": True,
                "challenger": {"policy": {"name": "p2c"}},
                "state_file": str(path),
                "interval_s": 0.05,
                "shares": [0.3, 1.0],
            },
        }
        config = tmp_path / "router.yaml"
        config.write_text(yaml.safe_dump(values))

        async def started() -> ServerProcess:
            router = ServerProcess("serve", "--config", str(config))
            await asyncio.to_thread(router.wait_until_ready, url)
            return router

        router = await started()
        try:
            before = await asyncio.to_thread(wait_for, path, 1)
            router.kill()
            router = await started()
            deadline_s = time.monotonic() + 60.0
            while await asyncio.to_thread(share_at, url) != 0.3:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.05)
            now = state_in(path)
            assert (now.started_unix_s, now.stage) == (before.started_unix_s, 0)
            assert [one.what for one in now.transitions] == ["started"]
            # From beside it, while it runs.
            arguments = ("canary", "abort", "--config", str(config), "--reason", "enough", "--json")
            done = await asyncio.to_thread(run_cli, *arguments)
            assert json.loads(done.stdout)["phase"] == "aborted", done.stderr
            deadline_s = time.monotonic() + 60.0
            while await asyncio.to_thread(share_at, url) > 0.0:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.05)
        finally:
            router.close()
