"""Every configuration key is documented, and every configuration file that ships is commented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steersman.predictors.bundle import Manifest
from steersman.serving.config import RouterSettings
from steersman.serving.discovery.files import BackendFile
from steersman.traces.settings import CONFIG_ROOT, load_settings
from tests.support.configuration import PAGE, all_settings, documented, filled

NOT_WRITTEN_BY_USERS = {Manifest}
SAID_ELSEWHERE = {BackendFile}  # its one key is the router's `backends`
FILES = sorted(CONFIG_ROOT.rglob("*.yaml"))


def test_the_page_shows_the_keys_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run: python -m tests.support.configuration"


def test_every_key_is_on_the_page() -> None:
    missing = all_settings() - documented(PAGE.read_text(encoding="utf-8")) - NOT_WRITTEN_BY_USERS
    missing -= SAID_ELSEWHERE
    names = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in missing if kind.model_fields)
    assert not names, "add a block for these to docs/configuration.md"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIG_ROOT)))
def test_files_that_ship_are_commented(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# "), "the first line says what the file is for"
    assert len(re.findall(r"#", text)) >= len(text.splitlines()) / 3


@pytest.mark.parametrize("file", sorted((CONFIG_ROOT / "serving").glob("*.yaml")), ids=lambda f: f.stem)
def test_router_configurations_load(file: Path) -> None:
    assert load_settings(file, RouterSettings).backends
