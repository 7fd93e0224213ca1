"""Machine code in place of numpy for the features of a decision (`policy.compiled`).

What was compiled before is read before anybody is served. Otherwise the router serves at once, with
numpy; a process beside it compiles, where numba is installed, and leaves a file on disk. Machine code
serves once it has given what numpy gives for a number of pools drawn at random, bit by bit. Whatever
fails, numpy goes on: the log says why, once, and `/health` and a metric for as long as it is so.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from steersman.agents.samples import sample_inputs
from steersman.env.observation import observe
from steersman.predictors import code_cache
from steersman.predictors.compiled import MachineCode
from steersman.predictors.features import NUMPY, Formulas
from steersman.serving.helper import Helper, launch
from steersman.serving.metrics import RouterMetrics
from steersman.serving.policy_settings import Compiled, PolicySettings
from steersman.traces.errors import ArtifactError

logger = logging.getLogger("steersman.serving")

P = ParamSpec("P")
T = TypeVar("T")

CHECK_S = 0.5
PATIENCE_S = 300.0
"""Until a process that compiles is given up; on an idle core it takes four."""
SAMPLES, MOST_REPLICAS = 12, 24
COMMAND = (sys.executable, "-m", "steersman.predictors.compile")


class By(StrEnum):
    """What calculates features."""

    NUMPY = "numpy"
    MACHINE_CODE = "machine code"


class Compilation:
    """The control loop that has the features of decisions compiled, once.

    Args:
        settings: whether it is wanted.
        metrics: show whether it is so.
        use: from now on these calculate.
        command: that compiles, before the file that it is to make.
    """

    name = "compilation"

    def __init__(
        self,
        settings: PolicySettings,
        metrics: RouterMetrics,
        use: Callable[[Formulas], None],
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self.by = By.NUMPY
        self.reason = "nothing has been compiled yet"
        """Why it is numpy."""
        self._use = use
        self._command = command
        self._is_wanted = settings.compiled is Compiled.AUTO
        self._is_done = False
        self._file: Path | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._worker: Helper | None = None
        metrics.watch_value(
            "decisions_compiled",
            "1 while machine code calculates what decisions look at, 0 while numpy does",
            lambda: float(self.by is By.MACHINE_CODE),
        )

    async def step(self, now_s: float) -> float:
        """Start, watch or read; returns the pause. The first step, before anybody is served, reads what
        was compiled earlier; that takes 30 ms."""
        file = self._place()
        if file is not None:
            if self._worker is not None:
                self._watch(self._worker, now_s)
            elif not file.exists():
                await self._compile(file, now_s)
            if self._worker is None and not self._is_done:
                self._read(file)
        return math.inf if self._is_done else CHECK_S

    def close(self) -> None:
        """The router ends, or needs it no more."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _place(self) -> Path | None:
        """Where machine code is to be; None if there is nothing to be done (any more)."""
        if self._is_done or self._file is not None:
            return None if self._is_done else self._file
        if not self._is_wanted:
            self._stay("policy.compiled is 'never'", logging.DEBUG)
        elif not code_cache.numba_version():
            self._stay("numba is not installed ('pip install steersman[fast]')", logging.INFO)
        else:
            self._file = self._writable()
        return self._file

    def _writable(self) -> Path | None:
        folder = code_cache.cache_folder(code_cache.FEATURES)
        if folder is None:
            try:
                self._scratch = tempfile.TemporaryDirectory(prefix="steersman-")
            except OSError as error:
                self._stay(f"there is nowhere to write machine code ({error.strerror})")
                return None
            folder = Path(self._scratch.name)
        return code_cache.features_file(folder)

    async def _compile(self, file: Path, now_s: float) -> None:
        try:
            self._worker = await asyncio.to_thread(launch, [*self._command, str(file)], now_s)
        except OSError as error:
            self._stay(f"no process can be started to compile ({error})")

    def _watch(self, worker: Helper, now_s: float) -> None:
        status = worker.process.poll()
        if status is None:
            if now_s - worker.began_s > PATIENCE_S:
                self._stay(f"compiling took more than {PATIENCE_S:g} s")
        elif status != 0:
            self._stay(f"compiling failed with status {status}: {worker.last_complaint()}")
        else:
            worker.close()
            self._worker = None

    def _read(self, file: Path) -> None:
        try:
            machine_code = MachineCode.read(file).formulas
            _check(machine_code)
        except (ArtifactError, OSError, ImportError) as error:
            self._stay(f"machine code cannot be used: {error}")
            return
        self.by, self.reason, self._is_done = By.MACHINE_CODE, "", True
        self._use(self._guarded(machine_code))
        self.close()
        logger.info("features of decisions are calculated by machine code")

    def _guarded(self, machine_code: Formulas) -> Formulas:
        """Should it ever fail, the decision is made all the same."""

        def instead(code: Callable[P, T], plain: Callable[P, T]) -> Callable[P, T]:
            def either(*given: P.args, **named: P.kwargs) -> T:
                try:
                    return code(*given, **named)
                except Exception as error:
                    self._stay(f"machine code failed: {type(error).__name__}: {error}")
                    return plain(*given, **named)

            return either

        return Formulas(
            instead(machine_code.features, NUMPY.features),
            instead(machine_code.unloaded_ttft_s, NUMPY.unloaded_ttft_s),
        )

    def _stay(self, reason: str, level: int = logging.WARNING) -> None:
        """With numpy, for good."""
        self.by, self.reason, self._is_done = By.NUMPY, " ".join(reason.split()), True
        self._use(NUMPY)
        self.close()
        logger.log(level, "features of decisions are calculated by numpy: %s", self.reason)


def _check(machine_code: Formulas) -> None:
    """It has to give what numpy gives.

    Raises:
        ArtifactError: it does not.
    """
    rng = np.random.default_rng(0)
    for replicas in rng.integers(1, MOST_REPLICAS, SAMPLES).tolist():
        given = sample_inputs(rng, replicas)
        plain, compiled = observe(*given), observe(*given, formulas=machine_code)
        same = np.array_equal(plain.replicas, compiled.replicas)
        same &= np.allclose(plain.pool, compiled.pool, rtol=1e-6, atol=0.0)
        asked = given[0], np.array(1000.0)
        same &= np.array_equal(NUMPY.unloaded_ttft_s(*asked), machine_code.unloaded_ttft_s(*asked))
        if not same:
            raise ArtifactError("it does not give what numpy gives")
