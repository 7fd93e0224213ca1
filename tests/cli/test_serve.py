"""`steersman serve` as a user meets it: a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from steersman.cli.serve import _settings
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_log import read_outcomes
from tests.serving.backends import Backend, backends, completion, events, stream, whole
from tests.serving.harness import chat, eventually
from tests.support.commands import mistake
from tests.support.processes import free_port, run_cli, serving

GOOD = whole(completion())


def one_line(text: str) -> str:
    """The last line; everything before it must be log lines."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no backends; give --config FILE, or --backend URL"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--backend", "localhost:8000"], "not an http(s) URL"),
        (["--backend", "http://a", "--policy", "p3c"], "did you mean 'p2c'?"),
        (["--backend", "http://a=a100-lama"], "unknown hardware profile 'a100-lama'"),
        (["--backend", "http://a", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8080"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in mistake(("serve", *arguments), monkeypatch, capsys)


def test_an_unknown_key_is_told_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("backends: [{url: 'http://a'}]\nscrap: {}\n")
    said = mistake(("serve", "--config", str(file)), monkeypatch, capsys)
    assert "unknown key 'scrap'; did you mean 'scrape'?" in said


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_cli("serve", "--backend", "http://127.0.0.1:1", "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in one_line(done.stderr)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        "backends: [{url: 'http://a'}]\nport: 1\n"
        "policy: {name: p2c, options: {utilisation_weight: 0.5}, seed: 3}\n"
        "outcome_log: {directory: here, segment_bytes: 70000}\n"
    )
    settings = _settings(
        file,
        {"port": 2, "policy": {"name": "random"}, "outcome_log": {"directory": "there"}},
    )
    assert settings.port == 2
    assert settings.policy.name == "random"
    assert settings.policy.options == {}
    assert settings.outcome_log.directory == "there"
    assert settings.outcome_log.segment_bytes == 70000
    kept = _settings(file, {"policy": {"name": "p2c"}})
    assert kept.policy.options == {"utilisation_weight": 0.5}
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping"):
        _settings(file, {})


async def test_check_finds_what_is_wrong() -> None:
    async with backends(GOOD, GOOD) as fleet:
        fleet[1].metrics = b"<html>"
        urls = [backend.url for backend in fleet]
        options = [word for url in urls for word in ("--backend", url)]
        done = await asyncio.to_thread(run_cli, "serve", "--check", *options[:2])
        assert (done.returncode, done.stderr) == (0, "")
        assert "serves m" in done.stdout
        done = await asyncio.to_thread(run_cli, "serve", "--check", "--json", *options)
        assert done.returncode == 2
        assert "1 of 2 backends have problems" in one_line(done.stderr)
        told = json.loads(done.stdout)["backends"]
        assert [result["engine"] for result in told] == ["vllm", ""]
        assert "is it an inference engine's /metrics" in told[1]["problems"][0]


def test_check_tells_of_a_backend_that_cannot_be_reached() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run_cli("serve", "--check", "--backend", url)
    assert done.returncode == 2
    assert "cannot connect" in one_line(done.stderr)


async def test_it_serves_and_drains_on_sigterm(tmp_path: Path) -> None:
    slow = stream(events(20), delay_s=0.05)
    async with backends(slow) as fleet:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        log = tmp_path / "log"
        started = serving(
            "serve", "--backend", fleet[0].url, "--port", str(port), "--log-dir", str(log), url=url
        )
        process = await asyncio.to_thread(started.__enter__)
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.post(url + "/v1/chat/completions", json=chat(stream=True)) as answer,
            ):
                assert answer.status == 200
                first = await answer.content.readany()
                process.terminate()
                rest = await answer.read()
            assert first + rest == b"".join(events(20))
            assert await asyncio.to_thread(process.wait) == 0
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
        assert len(list(log.iterdir())) == 1, "the log was written to its end"


async def test_sighup_has_the_configuration_read_again(tmp_path: Path) -> None:
    text = b"".join(events(6))
    slow = stream(events(6), delay_s=0.02)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    path = tmp_path / "router.yaml"
    async with backends(slow, slow) as fleet, aiohttp.ClientSession() as client:

        def write(*listed: Backend, **more: Any) -> None:
            entries = [{"id": b.name, "url": b.url, "models": ["m"]} for b in listed]
            path.write_text(yaml.safe_dump({"backends": entries, "health": {"interval_s": 0.2}} | more))

        async def ask() -> str:
            async with client.post(url + "/v1/chat/completions", json=chat(stream=True)) as answer:
                assert (answer.status, await answer.read()) == (200, text)
                return answer.headers["x-steersman-replica"]

        async def loaded(line: str) -> bool:
            await asyncio.gather(*(ask() for _ in range(4)))
            async with client.get(url + "/metrics") as page:
                return line in await page.text()

        write(fleet[0])
        started = serving("serve", "--config", str(path), "--port", str(port), url=url)
        process = await asyncio.to_thread(started.__enter__)
        try:
            assert {await ask() for _ in range(3)} == {"b0"}
            for listed, more, line in (
                (fleet[1:], {}, 'steersman_config_reloads_total{result="loaded"} 1.0'),
                (fleet, {"polcy": {}}, 'steersman_config_reloads_total{result="refused"} 1.0'),
                (
                    fleet,
                    {"policy": {"name": "p2c"}},
                    'steersman_config_reloads_total{result="loaded"} 2',
                ),
            ):
                write(*listed, **more)
                process.reload()
                await eventually(lambda line=line: loaded(line), within_s=20.0)
            assert "did you mean 'policy'" in process.log
            await asyncio.gather(*(ask() for _ in range(8)))
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


async def test_it_is_a_lame_duck_before_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with backends(GOOD) as fleet, aiohttp.ClientSession() as client:
        path.write_text(
            yaml.safe_dump({"backends": [{"url": fleet[0].url}], "timeouts": {"lame_duck_s": 60.0}})
        )
        started = serving("serve", "--config", str(path), "--port", str(port), url=url)
        process = await asyncio.to_thread(started.__enter__)
        try:
            process.terminate()

            async def says_so() -> bool:
                async with client.get(url + "/ready") as page:
                    return page.status == 503 and page.headers.get("connection") == "close"

            await eventually(says_so)
            async with client.get(url + "/health") as page:
                assert (page.status, (await page.json())["status"]) == (503, "draining")
            async with client.get(url + "/live") as page:
                assert page.status == 200
            async with client.post(url + "/v1/chat/completions", json=chat()) as answer:
                assert answer.status == 200, "who comes all the same is served"
                assert answer.headers["connection"] == "close"
            process.terminate()  # a second time: now
            assert await asyncio.to_thread(process.wait) == 0
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


async def test_workers_are_replaced_without_a_failed_request_or_a_lost_record(tmp_path: Path) -> None:
    """Even where the disk refuses the log all the while, and one of them is killed."""
    log = tmp_path / "log"
    text = b"".join(events(6))
    slow = stream(events(6), delay_s=0.02)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with backends(slow, slow) as fleet, aiohttp.ClientSession() as client:
        options = [word for backend in fleet for word in ("--backend", backend.url)]
        options += ["--port", str(port), "--log-dir", str(log)]
        started = serving("serve", *options, "--workers", "2", url=url)
        process = await asyncio.to_thread(started.__enter__)
        asked = 0

        async def ask() -> None:
            nonlocal asked
            async with client.post(
                url + "/v1/chat/completions",
                json=chat(f"question {asked}", stream=True),
                headers={"connection": "close"},
            ) as answer:
                assert (answer.status, await answer.read()) == (200, text)
            asked += 1

        async def ask_until(condition: Callable[[], bool]) -> None:
            async def met() -> bool:
                await asyncio.gather(*(ask() for _ in range(8)))
                return condition()

            await eventually(met, within_s=30.0)

        async def counted(line: str, value: float) -> bool:
            async with client.get(url + "/metrics") as page:
                return f"{line} {value}" in await page.text()

        try:
            first = workers_of(process.pid)
            assert len(first) == 2
            log.rmdir()
            log.write_text("in the way")
            process.signal(signal.SIGUSR2)
            await ask_until(lambda: not first & workers_of(process.pid))
            ok = 'steersman_requests_total{model="m",status="ok"}'
            await eventually(lambda: counted(ok, float(asked)), within_s=10.0)
            waiting = "steersman_outcome_log_overflow_records"
            await eventually(lambda: counted(waiting, float(asked)), within_s=10.0)
            second = workers_of(process.pid)
            assert len(second) == 2
            os.kill(min(second), signal.SIGKILL)
            await eventually(lambda: len(workers_of(process.pid) - {min(second)}) == 2, within_s=20.0)
            await ask_until(lambda: True)
            await eventually(lambda: counted("steersman_worker_restarts_total", 1.0), within_s=10.0)
            await eventually(lambda: counted(waiting, float(asked)), within_s=10.0)
            assert await counted("steersman_outcome_log_dropped_total", 0.0)
            log.unlink()
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
            assert len({record.request_id for record in read_outcomes(log)}) == asked
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


async def test_what_an_operator_changes_reaches_every_worker(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    config = tmp_path / "router.yaml"
    async with backends(GOOD, GOOD) as fleet, aiohttp.ClientSession() as client:
        values: dict[str, Any] = {
            "workers": 2,
            "port": port,
            "admin": {"port": admin_port},
            "policy": {"name": "round-robin"},
            "backends": [{"id": backend.name, "url": backend.url} for backend in fleet],
        }
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        started = serving("serve", "--config", str(config), url=url)
        process = await asyncio.to_thread(started.__enter__)

        async def told(method: str, path: str) -> tuple[int, Any]:
            headers = {"connection": "close"}  # so that now one worker answers, now the other
            async with client.request(method, admin + path, headers=headers) as answer:
                return answer.status, await answer.json()

        async def workers_that_follow(path: str) -> bool:
            status, answer = await told("POST", path)
            assert status == 200
            return bool(answer["workers"] == {"did": 2, "of": 2})

        async def served_by() -> set[str]:
            replicas = set()
            for _ in range(12):
                async with client.post(
                    url + "/v1/chat/completions", json=chat(), headers={"connection": "close"}
                ) as answer:
                    assert answer.status == 200
                    replicas.add(answer.headers["x-steersman-replica"])
            return replicas

        try:
            await eventually(lambda: workers_that_follow("/replicas/b0/drain"), within_s=30.0)
            assert await served_by() == {"b1"}
            os.kill(min(workers_of(process.pid)), signal.SIGKILL)
            # Who comes in its place knows.
            await eventually(lambda: workers_that_follow("/replicas/b1/resume"), within_s=30.0)
            assert await served_by() == {"b1"}
            assert (await told("POST", "/replicas/b9/drain"))[0] == 404
            config.write_text(yaml.safe_dump(values | {"aliases": {"gpt": "m"}}), encoding="utf-8")
            os.kill(process.pid, signal.SIGSTOP)  # the supervisor comes to it only when the file is bad
            status, answer = await told("POST", "/reload")
            assert (status, answer["changed"], answer["workers"]) == (
                200,
                ["aliases"],
                {"did": 2, "of": 2},
            )
            config.write_text(yaml.safe_dump(values | {"polcy": {}}), encoding="utf-8")
            os.kill(process.pid, signal.SIGCONT)
            status, answer = await told("POST", "/reload")
            assert (status, answer["workers"]) == (422, {"did": 0, "of": 2})
            # One that starts now has what counts, not what was refused.
            os.kill(min(workers_of(process.pid)), signal.SIGKILL)
            await eventually(lambda: workers_that_follow("/replicas/b0/resume"), within_s=30.0)
            for _ in range(8):
                assert (await told("GET", "/config"))[1]["aliases"] == {"gpt": "m"}
            assert await served_by() == {"b0", "b1"}
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


def workers_of(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return {int(child) for child in children.split()}


def test_workers_find_out_at_once_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = str(tmp_path / "file" / "log")
    options = ("--backend", "http://127.0.0.1:1", "--workers", "2", "--port", str(free_port()))
    done = run_cli("serve", *options, "--log-dir", log)
    assert done.returncode == 2
    assert "cannot be made" in one_line(done.stderr)
