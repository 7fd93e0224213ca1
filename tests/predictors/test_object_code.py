from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from steersman.predictors.machine_code import Compiler, object_code
from steersman.predictors.object_code import ObjectCode, read_code, write_code
from steersman.traces.errors import ArtifactError
from tests.support.machine_code import compiled_file


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "code.o"
    write_code(path, b"one")
    write_code(path, b"another")
    assert read_code(path) == b"another"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 20, 1000])
def test_half_a_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "code.o"
    path.write_bytes(compiled_file().read_bytes()[:keep])
    with pytest.raises(ArtifactError, match="damaged"):
        read_code(path)


def test_a_function_that_is_not_there_is_told() -> None:
    code = ObjectCode(read_code(compiled_file()))
    with pytest.raises(ArtifactError, match="lacks a function"):
        code.addresses(["no_such_function"])


def test_an_object_file_needs_nobody_else() -> None:
    functions: Any = numba

    def allocates(n: int) -> float:
        return float(np.ones(n).sum())

    def adds(one: float, other: float) -> float:
        return one + other

    compiler = Compiler(None)
    sum_kind = types.float64(types.float64, types.float64)
    assert object_code({"adds": compiler.cfunc(sum_kind, adds)}).startswith(b"\x7fELF")
    outside = functions.cfunc(types.float64(types.int64))(allocates)
    with pytest.raises(ValueError, match="needs"):
        object_code({"allocates": outside})
