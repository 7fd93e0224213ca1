from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from steersman.serving.rehearsal.children import Children, free_ports
from steersman.traces.errors import BackendError


def test_a_child_that_ends_early_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with (
        Children(tmp_path / "logs") as children,
        pytest.raises(BackendError, match=r"backend: ended with status 2 .*No such command"),
    ):
        children.start("backend", "no-such-command", ready=("http://127.0.0.1:9/health",))


def test_children_are_gone_after_an_error(tmp_path: Path) -> None:
    groups = []

    def work() -> None:
        port = free_ports(1)
        profile, url = "a100-llama-3.1-8b", f"http://127.0.0.1:{port}/health"
        with Children(tmp_path) as children:
            children.start("backend", "emulate", "--profile", profile, "--port", str(port), ready=(url,))
            groups.append(children.pid("backend"))
            os.killpg(groups[0], 0)  # alive
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(ProcessLookupError):
        os.killpg(groups[0], 0)
    assert (tmp_path / "backend.log").exists()


def test_free_ports_can_be_listened_on() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
