"""Commands in the test's own process: for mistakes, which are told before anything starts."""

from __future__ import annotations

import sys

import pytest

from steersman.cli import main


def mistake(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run `steersman` with bad input; the one line it says, after checking that it exits with 2."""
    monkeypatch.setattr(sys, "argv", ["steersman", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("steersman: error: ")
    ]
    assert len(said) == 1
    return said[0]
