"""`steersman serve` as a user meets it: a real process."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import aiohttp
import pytest

from steersman.cli.serve import _settings
from steersman.traces.errors import ConfigError
from tests.serving.backends import backends, completion, events, stream, whole
from tests.serving.harness import chat
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
def test_mistakes_end_in_one_line_and_code_2(arguments: list[str], message: str) -> None:
    done = run_cli("serve", *arguments)
    assert done.returncode == 2
    assert message in one_line(done.stderr)


def test_an_unknown_key_is_told_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("backends: [{url: 'http://a'}]\nscrap: {}\n")
    done = run_cli("serve", "--config", str(file))
    assert done.returncode == 2
    assert "unknown key 'scrap'; did you mean 'scrape'?" in one_line(done.stderr)


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
