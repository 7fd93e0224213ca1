"""What the documentation promises exists: links, commands and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_exist_with_their_options(page: Path) -> None:
    """Every `steersman …` line in a code block names a real command and only options it has."""
    import typer
    from typer.core import TyperGroup

    from steersman.cli import app

    root = typer.main.get_command(app)
    blocks = re.findall(
        r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    for line in lines:
        words = line.split("#")[0].split("|")[0].split()
        words = words[1:] if words and words[0] == "$" else words
        if not words or not re.fullmatch(r"(.*/)?steersman", words[0]):
            continue
        command = root
        rest = words[1:]
        while rest and isinstance(command, TyperGroup) and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        known = {
            option
            for parameter in command.params
            for option in parameter.opts + parameter.secondary_opts
        }
        known |= {"--help", "-h", "--install-completion", "--show-completion"}
        unknown = [word for word in rest if word.startswith("-") and word.split("=")[0] not in known]
        assert not unknown, f"{page.name}: `{line.strip()}` uses {unknown}"
        if isinstance(command, TyperGroup):
            names = [word for word in rest if not word.startswith("-")]
            assert not names, f"{page.name}: `{line.strip()}`: no command {names}"


def test_the_modules_of_the_architecture_page_exist() -> None:
    """In its tables of steps; a name without a folder stands in that of the name before."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| step \| module \|\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == 2
    for row in "".join(tables).splitlines():
        folder = ROOT
        for name in re.findall(r"`([\w/.]+)`", row):
            folder = (ROOT / name).parent if "/" in name else folder
            assert (folder / Path(name).name).exists(), row
