from __future__ import annotations

import sys

import pytest

from steersman import __version__
from steersman.cli import main
from tests.support.commands import mistake


def said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and stdout of a command."""
    monkeypatch.setattr(sys, "argv", ["steersman", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["train"], ["trace"], ["evaluate"]])
def test_a_group_alone_shows_its_commands(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = said(arguments, monkeypatch, capsys)
    assert code == 2
    assert "Commands" in shown


def test_tells_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["--version"], monkeypatch, capsys) == (0, f"steersman {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("simulate", "--seed", "3"), "No such option: --seed (Possible options: --seeds)"),
        (("simulate", "--seeds", "x"), "Invalid value for '--seeds'"),
        (("serv",), "Did you mean 'serve'?"),
        (("train", "polic"), "Did you mean 'policy'?"),
        (("trace", "inspect"), "Missing argument"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = mistake(arguments, monkeypatch, capsys)
    assert expected in line
    command = " ".join(("steersman", *arguments[: arguments[0] in {"train", "trace", "simulate"}]))
    assert f"'{command}" in line
    assert line.endswith("--help' lists what it takes")
