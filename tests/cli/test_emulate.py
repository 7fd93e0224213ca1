from __future__ import annotations

import socket

import pytest

from tests.support.commands import mistake


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "a100-lama-3.1-8b"), "did you mean 'a100-llama-3.1-8b'?"),
        (("--profile", "/no/such.yaml"), "/no/such.yaml: no such file"),
        (("--speed", "0"), "'speed' = 0.0"),
        (("--stream-interval", "0"), "'stream_interval' = 0"),
        (("--scenario", "tinny"), "did you mean 'tiny'?"),
        (("--scenario", "tiny", "--slowdown", "2"), "--scenario and --slowdown exclude each other"),
        (("--scenario", "tiny", "--port", "9001"), "--scenario and --port exclude each other"),
        (("--host", "192.0.2.1"), "192.0.2.1:8001: cannot be bound"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in mistake(("emulate", *arguments), monkeypatch, capsys)


@pytest.mark.parametrize("option", [("--port",), ("--scenario", "tiny", "--base-port")])
def test_a_port_that_is_taken(
    option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        line = mistake(("emulate", *option, port), monkeypatch, capsys)
    assert f"127.0.0.1:{port}: cannot be bound" in line
