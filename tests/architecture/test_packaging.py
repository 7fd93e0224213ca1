"""The wheel: complete, installable where nothing else is, and useful there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from steersman import __version__

ROOT = Path(__file__).resolve().parents[2]

NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info", "reports", "logs"
)

pytestmark = pytest.mark.timeout(600)  # the network may be slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves its build folder where the sources are."""
    source, out = tmp_path_factory.mktemp("source") / "steersman", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, symlinks=True, ignore=NOT_SOURCES)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of an environment that holds the wheel and its base dependencies, nothing else."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home)
    lock = ROOT / "requirements" / "lock.txt"
    pip = [sys.executable, "-m", "pip", "--python", str(home), "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--constraint", str(lock), str(wheel)], check=True, capture_output=True)
    return home / "bin"


def run(installed: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    return subprocess.run(
        [str(installed / "steersman"), *args],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    folders = ("traces", "predictors", "env", "agents", "serving", "configs")
    suffixes = {".py", ".yaml", ".parquet", ".j2", ".onnx"}
    wanted = {
        f"steersman/{path.relative_to(ROOT)}"
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes
    }
    assert wanted - held == set()
    assert "steersman/py.typed" in held


def test_the_wheel_claims_no_other_top_level_name(wheel: Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert top == {"steersman", f"steersman-{__version__}.dist-info"}


def test_help_and_version_work_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for command in (
        "demo",
        "simulate",
        "train",
        "evaluate",
        "serve",
        "emulate",
        "replay",
        "trace",
        "version",
    ):
        assert command in shown.stdout
    versions = run(installed, "version", "--json", cwd=tmp_path)
    assert json.loads(versions.stdout)["steersman"] == __version__


def test_the_bundled_trace_can_be_read_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "trace", "inspect", "azure-chat", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["requests"] == 19366


def test_a_command_whose_extra_is_missing_says_how_to_get_it(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "simulate", "demo", cwd=tmp_path)
    assert shown.returncode == 2
    assert "steersman[sim]" in shown.stderr
    assert "Traceback" not in shown.stderr
