"""Calls between compiled functions that are compiled apart: through a table of addresses.

numba compiles into a function all that it calls, however deep, and so on upwards: at the end of a long
chain the same code has been compiled many times. A linked function is compiled once, at its first call
in any process without a cache, and is a plain call to all that use it. All of them take a memory's
address, a replica and a time; the memory's header knows where the table is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from steersman.env.jit import cfunc, inner
from steersman.env.tables import links_in

Linked = Callable[[int, int, float], None]

ADVANCE, LEAP, LAUNCH, STEP, BEGIN, END, PATIENCE, CHANGE, DELIVER = range(9)
ADDRESSES = np.zeros(9, dtype=np.int64)
"""Of each function's machine code: at first, of Python code that compiles it."""

_KEPT: list[Any] = []
"""Code that addresses point at, the first included: it is still on the stack when it is replaced."""
_C_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_double)
_SIGNATURE = types.void(types.int64, types.int64, types.float64)


def linked(number: int) -> Callable[[Linked], Linked]:
    """Compile a function apart from those that call it."""

    def link(function: Linked) -> Linked:
        def compile_first(memory: int, replica: int, at_s: float) -> None:
            code = cfunc(_SIGNATURE, function)
            _KEPT.append(code)
            ADDRESSES[number] = code.address
            code.ctypes(memory, replica, at_s)

        first = _C_TYPE(compile_first)
        _KEPT.append(first)
        ADDRESSES[number] = ctypes.cast(first, ctypes.c_void_p).value or 0

        @inner
        def call(memory: int, replica: int, at_s: float) -> None:
            _call(links_in(memory)[number], memory, replica, at_s)

        return cast(Linked, call)

    return link


def _call_of(_typing: Any, _address: Any, _memory: Any, _replica: Any, _at_s: Any) -> Any:
    """Call what is at an address."""
    integer, number = ir.IntType(64), ir.DoubleType()
    code = ir.FunctionType(ir.VoidType(), [integer, integer, number]).as_pointer()

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.call(builder.inttoptr(arguments[0], code), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float64), generate


_call: Any = intrinsic(_call_of)
