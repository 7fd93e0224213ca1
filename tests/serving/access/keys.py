"""Key files for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from steersman.serving.access.secrets import new_key


def make_key(**entry: Any) -> tuple[str, dict[str, Any]]:
    """A key and its entry."""
    key, key_id, hashed = new_key()
    return key, {"id": key_id, "hash": str(hashed)} | entry


def write_keys(path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    """As somebody would who replaces the file: at once, as a whole."""
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"keys": list(entries)} | more), encoding="utf-8")
    return new.replace(path)


def bearer(key: str) -> dict[str, str]:
    """The header that carries it."""
    return {"authorization": f"Bearer {key}"}
