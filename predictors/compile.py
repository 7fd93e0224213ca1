"""Makes machine code of the features of a decision (`passes.py`), for `compiled.py`.

::

    python -m steersman.predictors.compile FILE

Takes numba, and ten seconds. The functions are those that numpy calls with arrays (`analytic.py`,
`load.py`, `features.py`); but for two in which numpy treats whole arrays, and which numbers have no need
of.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba import types

from steersman.predictors import analytic, features, load, passes
from steersman.predictors.analytic import prefill
from steersman.predictors.compiled import FIRST, SECOND, UNLOADED, MachineCode
from steersman.predictors.features import AVERAGED, POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.ledger import STATE_WIDTH
from steersman.predictors.load import Array, Columns
from steersman.predictors.machine_code import Compiler, object_code
from steersman.predictors.object_code import write_code
from steersman.predictors.passes import HELD

NICE = 10
"""What is served meanwhile comes first."""
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_numba: Any = numba  # of whose names the types of some are not known
_array, _pointer = _numba.carray, _numba.types.CPointer
_F32S, _F64S, _BYTES = (_pointer(kind) for kind in (types.float32, types.float64, types.uint8))
_F64, _COUNT = types.float64, types.int64
_STATE, _FEATURES, _REQUEST = STATE_WIDTH, len(REPLICA_FEATURES), len(REQUEST_FEATURES)
_POOL, _TOTALS = len(POOL_FEATURES), len(AVERAGED)


def compiled_passes(compiler: Compiler) -> SimpleNamespace:
    """The functions of `passes.py`, to be called from other compiled ones."""
    formulas = compiler.compiled(analytic, _prefills, _instead, options=_INNER)
    known = vars(formulas)
    for module in (load, features):
        known |= vars(compiler.compiled(module, options=_INNER))
    return compiler.compiled(passes, known=known, options=_INNER)


def features_code() -> bytes:
    """The object file with `FIRST`, `SECOND` and `UNLOADED`."""
    compiler = Compiler(None)
    made = compiled_passes(compiler)
    first_pass, second_pass, unloaded_pass = made.first_pass, made.second_pass, made.unloaded_pass

    def first(
        n: Any,
        state: Any,
        request: Any,
        match: Any,
        biases: Any,
        p50: Any,
        mean: Any,
        now_s: Any,
        excluded: Any,
        found: Any,
        held: Any,
        odds: Any,
        mask: Any,
    ) -> None:
        first_pass(
            _array(state, (n, _STATE)),
            _array(request, (_REQUEST,)),
            _array(match, (n,)),
            _array(biases, (n, 2)),
            p50,
            mean,
            now_s,
            _array(excluded, (n,)),
            _array(found, (n, _FEATURES)),
            _array(held, (n, HELD)),
            _array(odds, (2, n)),
            _array(mask, (n,)),
        )

    def second(
        n: Any,
        request: Any,
        held: Any,
        odds: Any,
        mask: Any,
        found: Any,
        pool: Any,
        totals: Any,
    ) -> None:
        second_pass(
            _array(request, (_REQUEST,)),
            _array(held, (n, HELD)),
            _array(odds, (2, n)),
            _array(mask, (n,)),
            _array(found, (n, _FEATURES)),
            _array(pool, (_POOL,)),
            _array(totals, (_TOTALS,)),
        )

    def unloaded(n: Any, state: Any, prompt: Any, unloaded_s: Any) -> None:
        unloaded_pass(_array(state, (n, _STATE)), prompt, _array(unloaded_s, (n,)))

    numbers = (_F64, _F64, _F64)
    first_kind = types.void(
        _COUNT, _F64S, _F32S, _F64S, _F64S, *numbers, _BYTES, _F32S, _F64S, _F64S, _BYTES
    )
    second_kind = types.void(_COUNT, _F32S, _F64S, _F64S, _BYTES, _F32S, _F32S, _F64S)
    return object_code(
        {
            FIRST: compiler.cfunc(first_kind, first),
            SECOND: compiler.cfunc(second_kind, second),
            UNLOADED: compiler.cfunc(types.void(_COUNT, _F64S, _F64, _F64S), unloaded),
        }
    )


def _prefills(
    columns: Columns, tokens: tuple[Array, ...], reach: tuple[Array, ...]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Numbers are not stacked."""
    one = prefill(columns, tokens[0], reach[0])
    two = prefill(columns, tokens[1], reach[1])
    three = prefill(columns, tokens[2], reach[2])
    return (one[0], two[0], three[0]), (one[1], two[1], three[1])


def _instead(values: Array, others: Array, where: bool) -> Array:
    """Nor changed in place."""
    return others if where else values


def main(path: Path) -> None:
    """Compile into a file; of several that are told to, one does and the others wait.

    It is tried here first: where new machine code may not be executed, this process ends, and no router.
    """
    os.nice(NICE)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            code = features_code()
            _try(MachineCode(code))
            write_code(path, code)


def _try(code: MachineCode) -> None:
    state, request = np.ones((3, _STATE)), np.ones(_REQUEST, dtype=np.float32)
    code.features(state, request, np.ones(3), np.array(1.0), None)
    code.unloaded_ttft_s(state, np.array(1.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
