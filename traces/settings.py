"""Typed YAML: one loader for every configuration file, so that every mistake reads alike."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from steersman.traces.errors import ConfigError

CONFIG_ROOT = Path(__file__).resolve().parent.parent / "configs"
"""The configurations that ship with Steersman (the `configs/` folder, or its copy in a wheel)."""


_SECRET_KEY = re.compile(r"(^|[._])(hash|password|secret|(?<!per_)token|api_key)$")
"""Keys whose values are never shown; `kv_bytes_per_token` is none."""
_SECRET = re.compile(r"\b(sk|hf|ghp|glpat)[-_][A-Za-z0-9_-]{8,}")
"""What looks like somebody's API key, in whatever place."""


class Settings(BaseModel):
    """Base of every configuration model: unknown keys and infinite numbers are errors, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


SettingsT = TypeVar("SettingsT", bound=Settings)


def load_settings(path: str | Path, model: type[SettingsT]) -> SettingsT:
    """Read and validate one YAML file.

    Raises:
        ConfigError: in one line, with the file, the key, the value and what would be right.
    """
    path = Path(path)
    return parse_settings(read_yaml(path), model, source=str(path))


def load_named_settings(folder: str, path_or_name: str | Path, model: type[SettingsT]) -> SettingsT:
    """Settings from a folder of `configs/` by name, or from the path of a YAML file.

    Raises:
        ConfigError: no such file, or a key of it is wrong.
    """
    bundled = CONFIG_ROOT / folder / f"{path_or_name}.yaml"
    return load_settings(bundled if bundled.is_file() else path_or_name, model)


def read_yaml(path: Path) -> Any:
    """Parse a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a readable YAML file") from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: not valid YAML: {reason}") from None


def parse_settings(data: Any, model: type[SettingsT], *, source: str) -> SettingsT:
    """Validate already parsed data; `source` names it in errors."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, got {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error, model)}") from None


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem in one line, and how many more there are."""
    # A misspelt key comes before the one that it leaves missing.
    first, *rest = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(rest)} more)" if rest else ""
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        known = _known_keys(model, first["loc"][:-1])
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(sorted(known))}"
        return f"unknown key '{key}'; {hint}{more}"
    if first["type"] == "missing":
        return f"missing key '{key}'; add it{more}"
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"{message}{more}"  # about keys together: the value would be the whole file
    return f"'{key}' = {_shown(first['input'], key)}: {message}{more}"


def _shown(value: Any, key: str) -> str:
    """A value for people: a secret must not get into a log by way of an error message."""
    if _SECRET_KEY.search(key):
        return "…"
    return _SECRET.sub("…", re.sub(r"//[^/@]*@", "//…@", repr(value)))


def _known_keys(model: type[BaseModel], parents: tuple[int | str, ...]) -> list[str]:
    """Field names of the (nested) model at `parents`, as far as it can be told."""
    current: Any = model
    for part in parents:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        if field is None:
            continue
        nested = [field.annotation, *getattr(field.annotation, "__args__", ())]
        current = next((t for t in nested if isinstance(t, type) and issubclass(t, BaseModel)), current)
    return list(current.model_fields)
