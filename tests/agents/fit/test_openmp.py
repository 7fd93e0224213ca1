from __future__ import annotations

import subprocess
import sys

PROBE = """
import importlib.abc, sys

class NoOpenMP(importlib.abc.MetaPathFinder):
    '''What the linker says of LightGBM where there is no libgomp, until torch has brought one.'''

    def find_spec(self, name, path, target=None):
        if name == "lightgbm" and "torch" not in sys.modules:
            raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

sys.meta_path.insert(0, NoOpenMP())
from steersman.agents.fit import forest
print("torch" in sys.modules, "lightgbm" in sys.modules)
"""


def test_lightgbm_loads_where_the_system_has_no_openmp() -> None:
    shown = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["True", "True"]
