from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from steersman.agents.learned.config import PracticeSettings
from steersman.agents.train import TrainSettings, load_train_settings
from steersman.traces.errors import ConfigError
from steersman.traces.settings import CONFIG_ROOT, parse_settings

TRAINING = sorted((CONFIG_ROOT / "training").glob("*.yaml"))


def described(model: type[BaseModel]) -> Iterator[str]:
    """Keys without a description, nested ones too."""
    for name, field in model.model_fields.items():
        if not field.description:
            yield f"{model.__name__}.{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from described(field.annotation)


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation)


def test_every_key_is_described() -> None:
    assert list(described(TrainSettings)) == []


def test_the_default_file_lists_every_key_with_its_default_and_a_comment() -> None:
    assert load_train_settings("default") == TrainSettings()
    text = (CONFIG_ROOT / "training" / "default.yaml").read_text(encoding="utf-8")
    written = re.findall(r"^ *(\w+):.*  # \S", text, flags=re.MULTILINE)
    assert sorted(written) == sorted(keys(TrainSettings))


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_shipped_files_are_valid_and_commented(path: Path) -> None:
    load_train_settings(path.stem)
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#") and line.strip() != "policy:":
            assert "  # " in line, line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"load": [1.0, 0.5]}, "'load' = .*lower bound first"),
        ({"replicas": [0, 4]}, "'replicas' = .*at least 1"),
        ({"replica": [1, 4]}, "did you mean 'replicas'"),
    ],
)
def test_mistakes_are_explained(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(data, PracticeSettings, source="practice.yaml")
