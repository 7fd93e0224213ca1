"""The router starts without anything that only training or simulation needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "numba",
    "gymnasium",
    "stable_baselines3",
    "mlflow",
    "lightgbm",
    "sklearn",
    "pandas",
    "scipy",
    "matplotlib",
    "onnx",
    "redis",
)

_PROGRAM = """
import sys
import {module}
print(*sorted(set({heavy!r}) & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "module",
    [
        "steersman.serving.app",
        "steersman.serving.server",
        "steersman.serving.probe",
        "steersman.serving.replay",
        "steersman.env.observation",
        "steersman.env.engine_metrics",
        "steersman.agents.learned.served",
        "steersman.agents.guard",
        "steersman.agents.train_settings",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    program = _PROGRAM.format(module=module, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == []
