"""Fixtures that tests of several folders share."""

from __future__ import annotations

import os
import shutil

import pytest


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
