"""Where machine code is kept: a folder for every state of the sources it was made of.

numba's own cache looks only at the file of the compiled function, so an edit in a function it calls
would silently run stale machine code. Here a folder is named by a hash of all the sources that decide
what the machine code is, and of the versions of numba and Python: any edit starts a fresh folder.

Nothing here loads numba.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU = Path("/proc/cpuinfo")
OF_FEATURES = (
    "analytic",
    "features",
    "ledger",
    "load",
    "passes",
    "compiled",
    "compile",
    "machine_code",
)
"""Modules beside this one that decide what machine code for features is."""
FEATURES = "features"
"""Of the folder of machine code for features."""


def numba_version() -> str:
    """Of the numba that is installed; empty without one."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return ""


def source_hash(sources: Iterable[bytes]) -> str:
    """Of these files' contents, and of who compiles them."""
    digest = hashlib.sha256(f"{numba_version()} {sys.version}".encode())
    for source in sources:
        digest.update(source)
    return digest.hexdigest()[:16]


def cache_folder(name: str) -> Path | None:
    """`$XDG_CACHE_HOME/steersman/numba/NAME`; None where it cannot be written."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(root).expanduser() / "steersman" / "numba" / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):
        return None
    return folder


def processor() -> str:
    """A name of this machine's kind of processor: machine code is made for one."""
    known = [platform.machine(), platform.processor()]
    try:
        lines = CPU.read_text().splitlines()
    except OSError:
        lines = []
    known += [
        line for line in dict.fromkeys(lines) if line.startswith(("model name", "flags", "Features"))
    ]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def feature_sources() -> list[bytes]:
    """Of everything that decides what machine code for features is."""
    here = Path(__file__).parent
    return [(here / f"{name}.py").read_bytes() for name in OF_FEATURES]


def features_file(folder: Path) -> Path:
    """What `predictors/compile.py` makes, for this kind of processor."""
    return folder / f"{source_hash(feature_sources())}-{processor()}.o"
