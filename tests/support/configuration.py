"""The tables of keys in docs/configuration.md, made from the settings classes themselves.

Run `python -m tests.support.configuration` after changing a key: it rewrites what stands between

    <!-- keys: steersman.serving.config.RouterSettings -->
    <!-- end -->

and leaves the rest of the page alone. `tests/test_configuration_docs.py` fails while they differ.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from steersman.traces.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
LAYERS = ("traces", "predictors", "env", "agents", "serving")

_BLOCK = re.compile(r"(<!-- keys: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def filled(page: str) -> str:
    """The page with every table as it should be."""
    return _BLOCK.sub(lambda block: f"{block[1]}{tables(settings_class(block[2]))}\n{block[3]}", page)


def documented(page: str) -> set[type[Settings]]:
    """Every settings class whose keys are on the page."""
    found: set[type[Settings]] = set()
    for block in _BLOCK.finditer(page):
        found.update(kind for _, kind in _sections(settings_class(block[2]), ""))
    return found


def all_settings() -> set[type[Settings]]:
    """Every settings class in the layers, found in the source."""
    return {
        settings_class(f"{_module(path)}.{name}")
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*.py"))
        for name in _subclasses(path)
    }


def settings_class(path: str) -> type[Settings]:
    """The class at a dotted path."""
    module, _, name = path.rpartition(".")
    found: type[Settings] = getattr(importlib.import_module(module), name)
    assert issubclass(found, Settings)
    return found


def tables(kind: type[Settings]) -> str:
    """One table for the class, and one for each section in it."""
    parts = []
    for prefix, section in _sections(kind, ""):
        title = f"\n`{prefix}`:\n\n" if prefix else "\n"
        rows = "".join(_row(name, field) for name, field in section.model_fields.items())
        parts.append(f"{title}| key | default | meaning |\n| --- | --- | --- |\n{rows}")
    return "".join(parts)


def _sections(kind: type[Settings], prefix: str) -> Iterator[tuple[str, type[Settings]]]:
    if kind.model_fields:
        yield prefix, kind
    for name, field in kind.model_fields.items():
        nested = _nested(field)
        if nested is not None:
            many = "[]" if field.annotation is not nested else ""
            yield from _sections(nested, f"{prefix}{'.' if prefix else ''}{name}{many}")


def _nested(field: FieldInfo) -> type[Settings] | None:
    candidates = [field.annotation, *get_args(field.annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Settings)), None)


def _row(name: str, field: FieldInfo) -> str:
    assert field.description, f"'{name}' has no description"
    meaning = " ".join(field.description.split()).replace("|", "\\|")
    meaning = meaning[0].upper() + meaning[1:]
    if not meaning.endswith("."):
        meaning += "."
    bounds = [
        f"{sign} {getattr(rule, attribute):g}"
        for attribute, sign in _BOUNDS
        for rule in field.metadata
        if hasattr(rule, attribute)
    ]
    if bounds:
        meaning += f" ({', '.join(bounds)})"
    return f"| `{name}` | {_default(field)} | {meaning} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    if _nested(field) is not None:
        return "see below"
    value: Any = field.get_default(call_default_factory=True)  # type: ignore[call-overload,unused-ignore]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(str(item) for item in value)}]`"
    return f"`{value!r}`" if isinstance(value, str) else f"`{value}`"


def _module(path: Path) -> str:
    return "steersman." + ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _subclasses(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if any(base == "Settings" or base.endswith(("Settings", "Options")) for base in bases):
                yield node.name


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
