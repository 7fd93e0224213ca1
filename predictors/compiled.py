"""The features of one decision by machine code, from the formulas that numpy calculates elsewhere.

A decision is some two hundred small calls of numpy, and what they cost is the calls. Here the same
functions (`analytic.py`, `features.py`) are called for one replica after the other (`passes.py`), as
machine code (`compile.py`). Powers and exponentials stay with numpy: it has its own, which differ from
the C library's in the last bit, so they are taken of all replicas at once, before and between two
passes. What comes out is what `features_of` gives, bit by bit; but for the means of the pool, whose sums
are taken in another order (in double precision: rounded, it shows in less than one of a million).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steersman.predictors import ledger as L
from steersman.predictors.analytic import mean_output
from steersman.predictors.features import (
    AVERAGED,
    OUTPUT_P50,
    OUTPUT_P90,
    POOL_FEATURES,
    REPLICA_FEATURES,
    REQUEST_FEATURES,
    Bools,
    Float32,
    Float64,
    Formulas,
)
from steersman.predictors.object_code import ObjectCode, read_code
from steersman.predictors.passes import BIASES, EXPONENTS, HELD

FIRST, SECOND, UNLOADED = "steersman_first_pass", "steersman_second_pass", "steersman_unloaded"
_MOST_SIZES = 32

# `PYFUNCTYPE`: the interpreter's lock is kept. To give it away for ten microseconds is to wait for it.
_P, _F64 = ctypes.c_void_p, ctypes.c_double
_FIRST = ctypes.PYFUNCTYPE(None, ctypes.c_int64, _P, _P, _P, _P, _F64, _F64, _F64, _P, _P, _P, _P, _P)
_SECOND = ctypes.PYFUNCTYPE(None, ctypes.c_int64, _P, _P, _P, _P, _P, _P, _P)
_UNLOADED = ctypes.PYFUNCTYPE(None, ctypes.c_int64, _P, _F64, _P)
_float32, _float64, _bool = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.bool_)
_byref = ctypes.byref
_first_byte: Any = ctypes.c_char.from_buffer  # arrays are buffers, whatever numpy's annotations say


class _Scratch(NamedTuple):
    """What the passes leave each other, of so many replicas, and where it is."""

    biases: Float64
    odds: Float64
    held: Float64
    totals: Float64
    nobody: Bools
    """Excluded."""
    addresses: tuple[int, int, int, int, int]

    @staticmethod
    def of(replicas: int) -> _Scratch:
        arrays = (
            np.empty((replicas, 2)),
            np.empty((2, replicas)),
            np.empty((replicas, HELD)),
            np.empty(len(AVERAGED)),
            np.zeros(replicas, dtype=np.bool_),
        )
        biases, odds, held, totals, nobody = (each.ctypes.data for each in arrays)
        return _Scratch(*arrays, (biases, odds, held, totals, nobody))


class MachineCode:
    """The `Formulas` of the router. Not for several threads at a time.

    Args:
        data: the object file that `compile.py` makes.

    Raises:
        ArtifactError: it is for another version.
    """

    def __init__(self, data: bytes) -> None:
        self._code = ObjectCode(data)
        first, second, unloaded = self._code.addresses((FIRST, SECOND, UNLOADED))
        self._first: Any = _FIRST(first)
        self._second: Any = _SECOND(second)
        self._unloaded: Any = _UNLOADED(unloaded)
        self._scratch: dict[int, _Scratch] = {}

    @staticmethod
    def read(path: Path) -> MachineCode:
        """From a file.

        Raises:
            ArtifactError: it is damaged, or for another version.
            OSError: it cannot be read.
        """
        return MachineCode(read_code(path))

    @property
    def formulas(self) -> Formulas:
        """For the router."""
        return Formulas(self.features, self.unloaded_ttft_s)

    def features(
        self,
        state: Float64,
        request: Float32,
        match_tokens: Float64,
        now_s: Float64,
        excluded: Bools | None,
    ) -> tuple[Float32, Float32, Bools]:
        """As `features_of`; all arrays C-contiguous.

        Raises:
            TypeError: they are something else.
        """
        n = len(state)
        scratch = self._scratch.get(n) or self._make_scratch(n)
        biases, odds, held, totals, nobody = scratch.addresses
        if excluded is None:
            excluded = scratch.nobody
        if not (
            state.shape == (n, L.STATE_WIDTH)
            and match_tokens.shape == excluded.shape == (n,)
            and request.shape == (len(REQUEST_FEATURES),)
            and state.dtype is match_tokens.dtype is _float64
            and request.dtype is _float32
            and excluded.dtype is _bool
        ):
            raise TypeError("machine code takes one decision's arrays")
        found = np.empty((n, len(REPLICA_FEATURES)), dtype=np.float32)
        pool, mask = np.empty(len(POOL_FEATURES), dtype=np.float32), np.empty(n, dtype=np.bool_)
        output = max(float(request[OUTPUT_P50]), 1.0)
        mean = float(mean_output(np.array(output), np.array(float(request[OUTPUT_P90]))))
        np.exp(state[:, BIASES], out=scratch.biases)
        # Of an array that is not contiguous, this is a TypeError.
        asked, into, open_ = (_byref(_first_byte(each)) for each in (request, found, mask))
        self._first(
            n,
            _byref(_first_byte(state)),
            asked,
            _byref(_first_byte(match_tokens)),
            biases,
            output,
            mean,
            float(now_s),
            nobody if excluded is scratch.nobody else _byref(_first_byte(excluded)),
            into,
            held,
            odds,
            open_,
        )
        np.power(scratch.odds, EXPONENTS, out=scratch.odds)
        self._second(n, asked, held, odds, open_, into, _byref(_first_byte(pool)), totals)
        return found, pool, mask

    def unloaded_ttft_s(self, state: Float64, prompt_tokens: Float64) -> Float64:
        """As `analytic.unloaded_ttft_s`, of one prompt; the state C-contiguous.

        Raises:
            TypeError: it is something else.
        """
        n = len(state)
        if not (state.shape == (n, L.STATE_WIDTH) and state.dtype is _float64):
            raise TypeError("machine code takes one pool's state")
        unloaded_s = np.empty(n)
        where = _byref(_first_byte(state)), _byref(_first_byte(unloaded_s))
        self._unloaded(n, where[0], float(prompt_tokens), where[1])
        return unloaded_s

    def _make_scratch(self, n: int) -> _Scratch:
        if len(self._scratch) >= _MOST_SIZES:
            self._scratch.clear()
        made = self._scratch[n] = _Scratch.of(n)
        return made
