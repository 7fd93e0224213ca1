"""Compilation of the engine: numba with a disk cache that notices every edit.

numba's own cache looks only at the file of the compiled function, so an edit in a function it calls
would silently run stale machine code. Here the cache folder is named by a hash of every module of this
folder that compiles anything, and of the versions of numba and Python: any edit starts a fresh folder.

The router's account (`predictors/ledger.py`) is compiled from the very functions the router calls.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeVar, cast

import numba
from numba import types

from steersman.predictors import ledger

_MARKS = (b"njit", b"steersman.env.jit", b"steersman.env.links")
"""One of these is in every module that compiles anything."""
_PLAIN = ("layout.py", "ledger.py")
"""Modules that compile nothing, whose constants and functions are in the machine code all the same."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def njit(function: FunctionT) -> FunctionT:
    """Compile lazily, cached on disk where the user's cache folder can be written."""
    with _cached():
        machine_code: Any = numba.njit(cache=_CACHE is not None, error_model="numpy")(function)
    return cast(FunctionT, machine_code)


def inner(function: FunctionT) -> FunctionT:
    """As `njit`, for what only compiled functions call: quicker to compile.

    It has no door for Python, and one version for all widths of integers, constants included.
    """
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    with _cached():
        machine_code: Any = numba.njit(cache=_CACHE is not None, error_model="numpy", **options)(
            function
        )
    template = machine_code.get_call_template
    machine_code.get_call_template = lambda args, kws: template(tuple(map(_wide, args)), kws)
    return cast(FunctionT, machine_code)


def _wide(kind: Any) -> Any:
    """The type that an argument of this type is passed as."""
    signed = isinstance(kind, types.IntegerLiteral) or kind in types.signed_domain
    return types.int64 if signed else kind


def cfunc(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile now, or read from the same cache, with the calling convention of C."""
    with _cached():
        return numba.cfunc(signature, cache=_CACHE is not None, error_model="numpy")(function)


@contextmanager
def _cached() -> Iterator[None]:
    """numba learns from its settings where the cache is."""
    settings: Any = numba.config
    previous = settings.CACHE_DIR
    try:
        settings.CACHE_DIR = "" if _CACHE is None else str(_CACHE)
        yield
    finally:
        settings.CACHE_DIR = previous


def compiled(module: ModuleType) -> SimpleNamespace:
    """Every function of `module` as machine code, private helpers included.

    Each is rebuilt from its own code object over a copy of the module's globals in which the
    functions are the compiled ones, so that what they call is compiled too; the module itself stays
    as it is. Only those that are called are compiled in the end.
    """
    scope = dict(vars(module))
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__
    ]
    for name in names:
        plain = scope[name]
        twin = FunctionType(plain.__code__, scope, name, plain.__defaults__, plain.__closure__)
        twin.__qualname__ = plain.__qualname__
        twin.__module__ = plain.__module__
        scope[name] = njit(twin)
    return SimpleNamespace(**{name: scope[name] for name in names})


def source_hash() -> str:
    """Of everything that decides what the machine code is."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(ledger.__file__)):
        source = path.read_bytes()
        if path.name in _PLAIN or any(mark in source for mark in _MARKS):
            digest.update(source)
    return digest.hexdigest()[:16]


def _cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/steersman/numba/<hash>`; None where it cannot be written."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(root).expanduser() / "steersman" / "numba" / source_hash()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):
        return None
    return folder


_CACHE = _cache_folder()
