from __future__ import annotations

import asyncio
import logging
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.samples import sample_inputs
from steersman.predictors import analytic, code_cache
from steersman.predictors.features import NUMPY, Formulas
from steersman.serving import compilation as module
from steersman.serving.compilation import By, Compilation
from steersman.serving.metrics import RouterMetrics
from steersman.serving.policy_settings import Compiled, PolicySettings
from tests.serving.backends import backends, completion, whole
from tests.serving.harness import routing, settings_for
from tests.support.machine_code import compiled_file

GOOD = whole(completion())


class Used:
    """Stands where the router does."""

    def __init__(self) -> None:
        self.formulas = NUMPY

    def __call__(self, formulas: Formulas) -> None:
        self.formulas = formulas


@pytest.fixture
def used() -> Used:
    return Used()


@pytest.fixture(scope="module")
def code() -> bytes:
    """Compiled earlier, like that of routers."""
    return compiled_file().read_bytes()


@pytest.fixture
def cache(code: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one; returns where machine code is looked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = code_cache.cache_folder(code_cache.FEATURES)
    assert folder is not None
    return code_cache.features_file(folder)


def make(used: Used, *command: str, compiled: Compiled = Compiled.AUTO) -> Compilation:
    return Compilation(PolicySettings(compiled=compiled), RouterMetrics(), used, command)


async def ended(compilation: Compilation) -> None:
    """Steps until there is nothing more to do."""
    for _ in range(2_000):
        if await compilation.step(0.0) == math.inf:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not end")


async def test_what_was_compiled_before_serves_from_the_first_step_on(used: Used, code: bytes) -> None:
    compilation = make(used, "false")
    assert await compilation.step(0.0) == math.inf
    assert (compilation.by, compilation.reason) == (By.MACHINE_CODE, "")
    state, request, match, now_s, _, _ = sample_inputs(np.random.default_rng(1), 4)
    given = (state, request, match, now_s, np.ones(4, dtype=np.bool_))
    np.testing.assert_array_equal(used.formulas.features(*given)[0], NUMPY.features(*given)[0])


async def test_a_process_beside_the_router_compiles(used: Used, cache: Path) -> None:
    compilation = make(used, *module.COMMAND)
    assert await compilation.step(0.0) == module.CHECK_S, "nobody waits for it"
    assert compilation.by is By.NUMPY
    await ended(compilation)
    assert (compilation.by, compilation.reason) == (By.MACHINE_CODE, "")
    assert used.formulas is not NUMPY
    assert cache.exists()


async def test_without_a_cache_it_is_compiled_for_this_process_alone(
    used: Used, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiled_file()
    (tmp_path / "steersman").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = f"import shutil, sys; shutil.copy({str(compiled)!r}, sys.argv[1])"
    compilation = make(used, sys.executable, "-c", script)
    await ended(compilation)
    assert compilation.by is By.MACHINE_CODE, compilation.reason
    assert compilation._scratch is None, "nothing is left behind"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("false",), "compiling failed with status 1: it said nothing"),
        ((sys.executable, "-c", "raise SystemExit('disk full')"), "status 1: disk full"),
        (("/no/such/program",), "no process can be started to compile"),
        (("true",), "machine code cannot be used"),
    ],
)
async def test_whatever_fails_numpy_goes_on(
    used: Used,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    command: tuple[str, ...],
    reason: str,
) -> None:
    compilation = make(used, *command)
    with caplog.at_level(logging.WARNING, "steersman.serving"):
        await ended(compilation)
    assert compilation.by is By.NUMPY
    assert reason in compilation.reason
    assert reason in caplog.text
    assert used.formulas is NUMPY
    assert await compilation.step(1.0) == math.inf


async def test_a_compiler_that_hangs_is_ended(used: Used, cache: Path) -> None:
    compilation = make(used, sys.executable, "-c", "import time; time.sleep(600)")
    await compilation.step(0.0)
    worker = compilation._worker
    assert worker is not None
    assert await compilation.step(module.PATIENCE_S) == module.CHECK_S
    assert await compilation.step(module.PATIENCE_S + 1.0) == math.inf
    assert worker.process.poll() is not None
    assert "took more than" in compilation.reason


async def test_damaged_machine_code_is_refused(used: Used, cache: Path, code: bytes) -> None:
    cache.write_bytes(code[:-1])
    compilation = make(used, "false")
    assert await compilation.step(0.0) == math.inf
    assert "damaged" in compilation.reason


async def test_machine_code_of_other_formulas_is_refused(
    used: Used, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytic, "_HALF", np.array(0.51))
    compilation = make(used, "false")
    await compilation.step(0.0)
    assert "does not give what numpy gives" in compilation.reason


async def test_it_is_left_alone_where_nobody_wants_it_or_numba_is_not_there(
    used: Used, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = make(used, "false", compiled=Compiled.NEVER)
    assert await never.step(0.0) == math.inf
    assert "never" in never.reason
    monkeypatch.setattr(code_cache, "numba_version", str)
    without = make(used, "false")
    assert await without.step(0.0) == math.inf
    assert "steersman[fast]" in without.reason


async def test_should_it_fail_one_day_the_decision_is_made_all_the_same(used: Used, code: bytes) -> None:
    compilation = make(used, "false")
    await compilation.step(0.0)
    state, request, match, now_s, _, _ = sample_inputs(np.random.default_rng(1), 4)
    given = (np.asfortranarray(state), request, match, now_s, np.ones(4, dtype=np.bool_))
    np.testing.assert_array_equal(used.formulas.features(*given)[0], NUMPY.features(*given)[0])
    assert compilation.by is By.NUMPY
    assert "machine code failed: TypeError" in compilation.reason
    assert used.formulas is NUMPY


async def test_a_router_decides_with_it_and_says_so(code: bytes) -> None:
    policy = {"name": "marginal-cost", "compiled": "auto"}
    async with (
        backends(GOOD, GOOD) as replicas,
        routing(settings_for(replicas, policy=policy)) as routed,
    ):
        status, _, _ = await routed.post()
        assert status == 200
        assert routed.parts.router.formulas is not NUMPY
        assert b'"features":{"by":"machine code","reason":""}' in (await routed.get("/health"))[1]
        assert await routed.metric("steersman_decisions_compiled") == 1.0
