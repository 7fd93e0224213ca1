"""What the pages for users say of keys, policies and messages is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from steersman.agents.policies import POLICY_NAMES
from steersman.serving.config import RouterSettings
from steersman.traces.settings import parse_settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def rows(page: str) -> Iterator[list[str]]:
    """Cells of the table rows of a page."""
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def keys(settings: type[BaseModel]) -> Iterator[str]:
    """Dotted names, down to the last section."""
    for name, field in settings.model_fields.items():
        yield name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}.{key}" for key in keys(kind))


def test_configurations_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "configure.md").read_text(), re.DOTALL)
    assert len(blocks) > 8
    for block in blocks:
        values = {"backends": [{"url": "http://a"}]} | yaml.safe_load(block)
        parse_settings(values, RouterSettings, source=block)


def test_keys_to_migrate_to_exist() -> None:
    known = set(keys(RouterSettings))
    backend = set(yaml.safe_load((ROOT / "configs/serving/router.yaml").read_text())["backends"][0])
    checked = 0
    for row in rows("migrate.md"):
        for key in re.findall(r"`([a-z_.\[\]]+)`", row[1]):
            name = key.replace("backends[].", "")
            if "policy.name" in row[1] and name not in known:
                continue  # the name of a policy
            assert name in known | backend, key
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("page", ["migrate.md", "configure.md"])
def test_policies_exist(page: str) -> None:
    text = (DOCS / page).read_text()
    named = re.findall(r"policy\.name`: ((?:`[a-z0-9-]+`(?:, | or )?)+)", text)
    names = {name for group in named for name in re.findall(r"`([a-z0-9-]+)`", group)}
    names |= set(re.findall(r"policy: \{name: ([a-z0-9-]+)", text))
    assert names
    assert names - {"learned"} <= set(POLICY_NAMES)


def test_messages_are_those_there_are() -> None:
    folders = ("serving", "agents", "predictors", "traces", "env", "steersman/cli")
    source = "".join(
        path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    )
    # As they are told: literals that are written on several lines are one.
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    source = re.sub(r"\{[^{}\n]*\}|%[sd]|%\.0f|%%", "…", source)
    checked = 0
    for row in rows("troubleshoot.md"):
        for part in re.split(r"…", row[0].strip("`")):
            fragment = part.strip()
            if len(fragment) > 8 and not fragment.startswith("/health"):
                assert fragment in source, fragment
                checked += 1
    assert checked > 18
