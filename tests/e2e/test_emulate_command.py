from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ServerProcess, answers_ok, free_ports

PAIR = """
name: pair
replicas:
  - {profile: a100-llama-3.1-8b, count: 1, max_num_seqs: 4}
  - {profile: l40s-llama-3.1-8b, count: 1, slowdown: 2.0}
trace: azure-chat
"""
SOLO = """
name: solo
replicas:
  - {profile: a100-llama-3.1-8b, count: 1}
trace: azure-chat
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def start(folder: Path, scenario: str, replicas: int) -> tuple[ServerProcess, list[str]]:
    path = folder / "scenario.yaml"
    path.write_text(scenario, encoding="utf-8")
    base = free_ports(replicas)[0]
    urls = [f"http://127.0.0.1:{base + i}" for i in range(replicas)]
    fleet = ServerProcess("emulate", "--scenario", str(path), "--base-port", str(base), "--json")
    try:
        wait_until(lambda: "}\n" in fleet.log or fleet.returncode is not None, 120.0)
        assert fleet.returncode is None, fleet.log
    except BaseException:
        fleet.close()
        raise
    return fleet, urls


def test_a_scenario_runs_all_its_replicas_and_stops_them(tmp_path: Path) -> None:
    fleet, urls = start(tmp_path, PAIR, 2)
    try:
        told = json.loads(fleet.log)["replicas"]
        assert [replica["url"] for replica in told] == urls
        assert [replica["id"] for replica in told] == ["a100-80gb-0", "l40s-48gb-1"]
        assert {replica["model"] for replica in told} == {"llama-3.1-8b"}
        assert all(answers_ok(f"{url}/health") for url in urls)
        fleet.terminate()
        assert fleet.wait() == 0
        assert not any(answers_ok(f"{url}/health") for url in urls)
    finally:
        fleet.close()


def test_replicas_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    fleet, urls = start(tmp_path, SOLO, 1)
    try:
        os.kill(fleet.pid, 9)  # the parent alone, not its group
        wait_until(lambda: not any(answers_ok(f"{url}/health") for url in urls))
    finally:
        fleet.close()


def test_one_backend_says_where_it_is_and_stops_in_good_order() -> None:
    backend = ServerProcess("emulate", "--port", "0", "--speed", "10")
    try:
        wait_until(lambda: "http://" in backend.log or backend.returncode is not None, 120.0)
        assert "a100-llama-3.1-8b" in backend.log
        assert answers_ok(backend.log.split()[0] + "/health")
        backend.interrupt()
        assert backend.wait() == 0
        assert "Traceback" not in backend.log
    finally:
        backend.close()
