"""Runs that are done already, in a file: a full evaluation takes hours, and may be interrupted.

A line holds one policy's runs in one part of the evaluation, under a name that stands for all that they
follow from: the part, the policy, its models, the tuned constants, every line of the code and which
libraries calculate. Policies are those that `contestants` makes of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import steersman
from steersman.agents.evaluate.constants import FOLDER
from steersman.agents.evaluate.contestants import LEARNED
from steersman.agents.evaluate.course import Protocol
from steersman.agents.evaluate.figures import Figures
from steersman.agents.evaluate.kept_lines import KeptLines
from steersman.agents.evaluate.table import Cell, Run
from steersman.agents.learned.shipped import load_shipped
from steersman.predictors.code_cache import source_hash
from steersman.traces.scenario import Scenario

_DECIDE = ("traces", "predictors", "env", "agents")
"""Packages whose code and data decide what a run is."""
_KINDS = (".py", ".yaml", ".parquet")
_LIBRARIES = ("numpy", "onnxruntime")


class RunRecord:
    """The file, read when it is opened and appended to.

    Args:
        path: JSON lines; made if it is missing.
        models: version of the bundle that the policies use; empty: none, and the shipped policy.

    Raises:
        ConfigError: the file cannot be read or written.
    """

    def __init__(self, path: Path, models: str = "") -> None:
        self._models = models
        self._lines = KeptLines(path, "record")
        self._known: dict[str, list[Run]] = {}
        for entry in self._lines.entries:
            try:
                self._known[entry["of"]] = [_run(each) for each in entry["runs"]]
            except (KeyError, TypeError):
                continue

    def known(self, policy: str, scenario: Scenario, protocol: Protocol) -> list[Run]:
        """The policy's runs in this part; empty if they are still to be made."""
        return self._known.get(self._name(policy, scenario, protocol), [])

    def keep(self, runs: Sequence[Run], scenario: Scenario, protocol: Protocol) -> None:
        """Write down the runs of a part, of each policy all of them."""
        for policy in dict.fromkeys(run.policy for run in runs):
            own = [run for run in runs if run.policy == policy]
            name = self._name(policy, scenario, protocol)
            self._known[name] = own
            self._lines.add({"of": name, "runs": [asdict(run) for run in own]})

    def _name(self, policy: str, scenario: Scenario, protocol: Protocol) -> str:
        models = self._models or (load_shipped().version if policy == LEARNED else "")
        asked = (policy, models, _state(), protocol.length.version)
        there = (scenario, *(value for key, value in vars(protocol).items() if key != "length"))
        return hashlib.sha256(repr((asked, there)).encode()).hexdigest()[:32]


def _run(entry: dict[str, Any]) -> Run:
    figures = entry["figures"] | {"shares": tuple(entry["figures"]["shares"])}
    return Run(
        entry["policy"],
        Cell(*entry["cell"]),
        entry["seed"],
        Figures(**figures),
        entry["fallbacks"],
    )


@cache
def _state() -> str:
    """Of everything that may change a run, models aside."""
    root = Path(steersman.__file__).parent
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    return f"{contents_hash([*(root / name for name in _DECIDE), FOLDER])} {libraries}"


def contents_hash(folders: Collection[Path]) -> str:
    """Of sources, settings and traces in these folders, and of who compiles them."""
    paths = sorted(path for each in folders for path in each.rglob("*") if path.suffix in _KINDS)
    return source_hash(path.name.encode() + path.read_bytes() for path in paths)
