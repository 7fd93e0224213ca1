"""Fixtures that tests of several folders share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is slow now and then; that is no failure of an invariant. In CI the examples are the
# same every time, so that a red run is about the change; elsewhere they are new, and find new faults.
settings.register_profile("steersman", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("steersman")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The Chromium binary. Installing it needs root, so `make test` can do without; CI cannot."""
    binary = (
        shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium on the path; .ci/run installs it")
        pytest.skip("no chromium on the path")
    return binary


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts an empty MLflow store into a directory: every new one costs MLflow a second of migrations."""
    from steersman.agents.mlflow_store import MlflowStore

    empty = MlflowStore(tmp_path_factory.mktemp("empty-store"), patience_s=10.0, tracking_uri="")
    with empty.opened():
        pass

    def make(root: Path) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty.root / "mlflow.db", root)
        return root

    return make
