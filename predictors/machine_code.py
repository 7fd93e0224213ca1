"""Machine code of plain functions, made by numba.

Two uses: the simulator calls what is compiled through numba, which keeps it on disk (`code_cache.py`);
the router is given an object file, for which it needs no numba (`object_code.py`).

Only who compiles imports this module: numba is an extra, and takes half a second and 100 MB to load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np

from steersman.predictors.object_code import target

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Compiler:
    """numba, with the options that all machine code here is made with.

    Args:
        folder: where it is kept; None: nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def njit(self, function: FunctionT, options: Mapping[str, bool] | None = None) -> FunctionT:
        """Compile when it is first called."""
        made: Any = numba.njit
        with self._cached():
            made = made(cache=self.folder is not None, error_model="numpy", **(options or {}))(function)
        return cast(FunctionT, made)

    def cfunc(self, signature: Any, function: Callable[..., Any]) -> Any:
        """Compile now, or read from the cache, with the calling convention of C."""
        with self._cached():
            return numba.cfunc(signature, cache=self.folder is not None, error_model="numpy")(function)

    def compiled(
        self,
        module: ModuleType,
        *instead: Callable[..., Any],
        known: Mapping[str, Any] | None = None,
        options: Mapping[str, bool] | None = None,
    ) -> SimpleNamespace:
        """Every function of `module` as machine code, private helpers included.

        Each is rebuilt from its own code object over a copy of the module's globals in which the
        functions are the compiled ones, so that what they call is compiled too, and arrays without
        dimensions are numbers; the module itself stays as it is. Only those that are called are
        compiled in the end.

        Args:
            instead: functions that take the place of those with their names, over the same globals:
                of what numpy does to whole arrays, the same for numbers.
            known: compiled functions of other modules, by the names under which this one has them.
            options: of numba.
        """
        scope = {name: _number(value) for name, value in vars(module).items()}
        scope |= {name: value for name, value in (known or {}).items() if name in scope}
        plain: dict[str, FunctionType] = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, FunctionType) and value.__module__ == module.__name__
        }
        plain |= {each.__name__: each for each in instead if isinstance(each, FunctionType)}
        for name, function in plain.items():
            twin = FunctionType(
                function.__code__, scope, name, function.__defaults__, function.__closure__
            )
            twin.__qualname__ = function.__qualname__
            twin.__module__ = function.__module__
            scope[name] = self.njit(twin, options)
        return SimpleNamespace(**{name: scope[name] for name in plain})

    @contextmanager
    def _cached(self) -> Iterator[None]:
        """numba learns from its settings where the cache is."""
        settings: Any = numba.config
        previous = settings.CACHE_DIR
        try:
            settings.CACHE_DIR = "" if self.folder is None else str(self.folder)
            yield
        finally:
            settings.CACHE_DIR = previous


def _number(value: Any) -> Any:
    """numba knows arrays without dimensions for arrays."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    if type(value) is tuple:
        return tuple(_number(each) for each in value)
    return value


_NEVER_CALLED = r"numba_\w+|Py\w+|NRT_Free|NRT_MemInfo_call_dtor"
"""What raises exceptions, and what lets go of an array that numba made."""
_DECLARED = re.compile(rf"^declare (.+?) @({_NEVER_CALLED})\((.*)\).*$", re.MULTILINE)


def object_code(functions: Mapping[str, Any]) -> bytes:
    """An object file that needs nothing of numba, Python or the C library.

    Args:
        functions: made by `Compiler.cfunc` without a cache, by the names that they get; they must not
            raise, or make arrays.

    Raises:
        ValueError: something outside is needed all the same.
    """
    module = llvm.parse_assembly("")
    for name, function in functions.items():
        text = function.inspect_llvm()
        # Where nothing is raised and no array made, all that is optimised away.
        text = _DECLARED.sub(_nothing, text)
        text = text.replace("= external global", "= internal global").replace("= common", "= internal")
        text = re.sub(r"^(@\S+ = internal global \S+)$", r"\1 zeroinitializer", text, flags=re.MULTILINE)
        text = re.sub(r"^define (?:linkonce_odr )?(?!internal)", "define internal ", text, flags=re.M)
        native = re.escape(function.native_name)
        text = re.sub(rf"^define internal (.*) @{native}\(", rf"define \1 @{name}(", text, flags=re.M)
        module.link_in(llvm.parse_assembly(text))
    machine = target()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    module.verify()
    needed = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if needed:
        raise ValueError(f"machine code needs {', '.join(needed)}")
    return bytes(machine.emit_object(module))


def _nothing(declared: re.Match[str]) -> str:
    """A function of that kind that does nothing."""
    kind, name, arguments = declared.groups()
    answer = {"void": "void", "ptr": "ptr null"}.get(kind.split()[-1], f"{kind.split()[-1]} 0")
    return f"define internal {kind} @{name}({arguments}) {{\n ret {answer}\n}}"
