"""Compilation of the engine: numba, with a disk cache that notices every edit.

How is said in `predictors/machine_code.py`; the cache folder is named by a hash of every module of this
folder that compiles anything, and of the formulas of the features. The router's account
(`predictors/ledger.py`) and the features (`predictors/passes.py`) are compiled from the very functions
that the router calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

from numba import types

from steersman.predictors import code_cache, history, ledger
from steersman.predictors.compile import compiled_passes
from steersman.predictors.machine_code import Compiler
from steersman.traces import schema

_MARKS = (b"njit", b"steersman.env.jit", b"steersman.env.links")
"""One of these is in every module that compiles anything."""
_PLAIN = ("layout.py",)
"""Modules that compile nothing, whose constants are in the machine code all the same."""
_ELSEWHERE = (ledger, history, schema)
"""The same, of other packages."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def njit(function: FunctionT) -> FunctionT:
    """Compile lazily, cached on disk where the user's cache folder can be written."""
    return _COMPILER.njit(function)


def inner(function: FunctionT) -> FunctionT:
    """As `njit`, for what only compiled functions call: quicker to compile.

    It has no door for Python, and one version for all widths of integers, constants included.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    machine_code: Any = _COMPILER.njit(function, options=options)
    template = machine_code.get_call_template
    machine_code.get_call_template = lambda args, kws: template(tuple(map(_wide, args)), kws)
    made: FunctionT = machine_code
    return made


def _wide(kind: Any) -> Any:
    """The type that an argument of this type is passed as."""
    signed = isinstance(kind, types.IntegerLiteral) or kind in types.signed_domain
    return types.int64 if signed else kind


def cfunc(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile now, or read from the same cache, with the calling convention of C."""
    return _COMPILER.cfunc(signature, function)


def compiled(module: ModuleType) -> SimpleNamespace:
    """Every function of `module` as machine code; see `Compiler.compiled`."""
    return _COMPILER.compiled(module)


def feature_passes() -> SimpleNamespace:
    """The features of a decision as machine code, as the router's: `predictors/passes.py`."""
    return compiled_passes(_COMPILER)


def source_hash() -> str:
    """Of everything that decides what the machine code is."""
    sources = list(code_cache.feature_sources())
    sources += (Path(str(module.__file__)).read_bytes() for module in _ELSEWHERE)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        if path.name in _PLAIN or any(mark in source for mark in _MARKS):
            sources.append(source)
    return code_cache.source_hash(sources)


_CACHE = code_cache.cache_folder(source_hash())
_COMPILER = Compiler(_CACHE)
