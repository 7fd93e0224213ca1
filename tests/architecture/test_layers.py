"""The plan of the house: layers import only downward, and every module is loaded under one name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("traces", "predictors", "env", "agents", "serving")  # lowest first


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute module name a file imports, wherever in the file, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; import from steersman.…"
            module = node.module or ""
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_lower_layers(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files(layer)
        for line, name in imported_names(path)
        if name.startswith("steersman.") and name.split(".")[1] not in allowed | {"__version__"}
    ]
    assert not wrong, "\n".join(wrong)


def test_serving_imports_the_environment_only_where_it_needs_no_simulator() -> None:
    """The router may use the shared observation, names and profiles, never the engine."""
    engine_free = {"observation", "engine_metrics", "profiles", "scenario"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files("serving")
        for line, name in imported_names(path)
        if name.startswith("steersman.env.") and name.split(".")[2] not in engine_free
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_a_layer_by_its_bare_name() -> None:
    """From the root, `import env` would load a second copy of every module in it."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for folder in (*LAYERS, "steersman/cli", "tests", "benchmarks")
        for path in python_files(folder)
        for line, name in imported_names(path)
        if name.split(".")[0] in {*LAYERS, "configs"}
    ]
    assert not wrong, "\n".join(wrong)


def test_no_second_copy_of_a_layer_is_loaded() -> None:
    loaded = {name.split(".")[0] for name in sys.modules}
    assert not loaded & set(LAYERS)


def test_the_package_links_lead_to_the_folders() -> None:
    for name in (*LAYERS, "configs"):
        link = ROOT / "steersman" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name


def test_the_environment_package_itself_is_empty() -> None:
    """Importing `steersman.env.observation` must not register or import anything else."""
    body = ast.parse((ROOT / "env" / "__init__.py").read_text(encoding="utf-8")).body
    assert [type(node) for node in body] == [ast.Expr]  # the docstring
