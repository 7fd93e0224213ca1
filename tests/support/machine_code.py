"""The machine code that routers use, compiled once for all tests and kept like theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from steersman.predictors import code_cache
from steersman.serving.compilation import COMMAND


def compiled_file() -> Path:
    """Where it is; takes a few seconds the first time after an edit."""
    folder = code_cache.cache_folder(code_cache.FEATURES)
    assert folder is not None
    file = code_cache.features_file(folder)
    if not file.exists():
        subprocess.run([*COMMAND, str(file)], check=True, timeout=300)
    return file
