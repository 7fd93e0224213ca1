from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env import jit
from steersman.predictors import code_cache, history, ledger
from steersman.traces import schema

COMPILED = jit.compiled(ledger)

AMOUNT = st.floats(0.0, 1e5)
TIME = st.just(0.0) | st.floats(1e-6, 100.0)
EVENTS = st.one_of(
    st.tuples(st.just("on_dispatch"), st.tuples(AMOUNT, AMOUNT, AMOUNT)),
    st.tuples(st.just("on_first_token"), st.tuples(AMOUNT, TIME, TIME)),
    st.tuples(st.just("on_finish"), st.tuples(AMOUNT, AMOUNT, AMOUNT, TIME, TIME, TIME)),
    st.tuples(st.just("on_abort"), st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.booleans())),
    st.tuples(st.just("on_scrape"), st.tuples(TIME, AMOUNT, AMOUNT, TIME)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_the_compiled_ledger_is_the_plain_one(events: list[tuple[str, tuple[Any, ...]]]) -> None:
    plain = np.zeros(ledger.STATE_WIDTH)
    compiled = plain.copy()
    for name, arguments in events:
        getattr(ledger, name)(plain, *arguments)
        getattr(COMPILED, name)(compiled, *arguments)
        assert np.array_equal(plain, compiled), name


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), TIME), max_size=20))
def test_the_compiled_ledger_knows_cold_replicas_too(events: list[tuple[int, bool, float]]) -> None:
    plain = np.zeros((3, ledger.STATE_WIDTH))
    plain[2, ledger.WEIGHTS_GIB] = 1.0
    compiled = plain.copy()
    for index, healthy, ttft_s in events:
        for module, state in ((ledger, plain), (COMPILED, compiled)):
            module.on_health(state, index, healthy)
            module.on_first_token(state[index], 0.0, ttft_s, 0.1)
        assert np.array_equal(plain, compiled)


def test_compiling_leaves_the_module_alone() -> None:
    assert type(ledger.on_dispatch).__name__ == "function"
    assert type(COMPILED.on_dispatch).__name__ == "CPUDispatcher"
    assert COMPILED.on_finish.py_func.__globals__["_leave"] is COMPILED._leave
    assert ledger.on_finish.__globals__["_leave"] is ledger._leave


def test_any_edit_of_a_compiled_module_changes_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(jit.__file__).parent
    for path in folder.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    before = jit.source_hash()
    (tmp_path / "observation.py").write_text("# not compiled\n")
    assert jit.source_hash() == before
    for name in ("kv", "scheduler", "layout", "engine", "lockstep", "delivery", "links"):
        path = tmp_path / f"{name}.py"
        path.write_text(path.read_text() + "\n# edited\n")
        after = jit.source_hash()
        assert after != before, name
        before = after


def test_any_edit_of_the_features_formulas_changes_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in Path(code_cache.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "code_cache.py"))
    before = jit.source_hash()
    for name in code_cache.OF_FEATURES:
        path = tmp_path / f"{name}.py"
        path.write_text(path.read_text() + "\n# edited\n")
        after = jit.source_hash()
        assert after != before, name
        before = after


@pytest.mark.parametrize("module", [ledger, history, schema])
def test_constants_of_other_packages_are_in_the_hash(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = jit.source_hash()
    edited = tmp_path / "edited.py"
    edited.write_text(Path(str(module.__file__)).read_text() + "\n# edited\n")
    monkeypatch.setattr(module, "__file__", str(edited))
    assert jit.source_hash() != before


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    path = tmp_path / "occupied"
    path.write_text("a file where the cache folder should be")
    return path


def test_without_a_writable_cache_it_compiles_in_memory(unwritable: Path) -> None:
    code = (
        "from steersman.env import jit\n"
        "assert jit._CACHE is None\n"
        "@jit.njit\n"
        "def double(x): return 2 * x\n"
        "assert double(21) == 42\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(unwritable)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
