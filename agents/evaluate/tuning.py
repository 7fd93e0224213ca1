"""Many searches, side by side and in several processes, each written down when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from steersman.agents.evaluate.constants import ALL, FOLDER, save_tuned
from steersman.agents.evaluate.course import Protocol, run_count
from steersman.agents.evaluate.lockstep import TOGETHER
from steersman.agents.evaluate.tune import (
    EVALUATIONS,
    POPULATION,
    TUNING,
    Search,
    Tuned,
    tune_together,
)
from steersman.agents.parallel import Progress, spread
from steersman.predictors.latency import LatencyPredictor
from steersman.traces.scenario import Scenario


class Found(NamedTuple):
    """The end of a search."""

    tuned: Tuned
    where: str
    """A scenario's name, or ALL."""
    path: Path
    """The file with the constants."""


@dataclass(frozen=True)
class TuningPlan:
    """Whose constants are to be found, where, and with what effort."""

    policies: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    once: bool = False
    """One set of constants for all scenarios together."""
    protocol: Protocol = TUNING
    latency: LatencyPredictor | None = None
    """What `predicted-latency` asks; `protocol.length` goes with it."""
    bundle: str = ""
    """Version of the models, if any."""
    evaluations: int = EVALUATIONS
    seed: int = 0
    commit: str = ""
    folder: Path = FOLDER
    notebook: Path | None = None

    @property
    def tasks(self) -> list[tuple[str, Search]]:
        """Where, and what is searched there."""
        if self.once:
            return [(ALL, Search(policy, self.scenarios, self.latency)) for policy in self.policies]
        return [
            (scenario.name, Search(policy, (scenario,), self.latency))
            for policy in self.policies
            for scenario in self.scenarios
        ]

    def carry_out(self, jobs: int, on_progress: Progress) -> list[Found]:
        """Search, and write the files; see `tune_together` and `spread`."""
        tasks = self.tasks
        # Of each search, all sets of a generation are played at once.
        places = run_count(POPULATION, len(tasks[0][1].scenarios), self.protocol)
        size = max(1, min(TOGETHER // places, len(tasks) // jobs))
        groups = [tasks[first : first + size] for first in range(0, len(tasks), size)]
        done = [
            found
            for group in spread([partial(self._search, group) for group in groups], jobs, on_progress)
            for found in group
        ]
        # Whoever searched has written it down at once; on another machine that is another disk.
        return [
            found._replace(path=save_tuned(found.tuned, where, self._about(search), self.folder))
            for found, (where, search) in zip(done, tasks, strict=True)
        ]

    def _search(self, tasks: Sequence[tuple[str, Search]], on_progress: Progress) -> list[Found]:
        results = tune_together(
            [search for _, search in tasks],
            protocol=self.protocol,
            evaluations=self.evaluations,
            seed=self.seed,
            notebook=self.notebook,
            on_progress=on_progress,
        )
        return [
            Found(tuned, where, save_tuned(tuned, where, self._about(search), self.folder))
            for (where, search), tuned in zip(tasks, results, strict=True)
        ]

    def _about(self, search: Search) -> dict[str, object]:
        names = [scenario.name for scenario in search.scenarios]
        loads = ",".join(f"{load:g}" for load in self.protocol.loads)
        return {
            "scenarios": names,
            "requests": self.protocol.requests,
            "loads": list(self.protocol.loads),
            "seed": self.seed,
            "commit": self.commit,
            "bundle": self.bundle,
            "command": f"steersman evaluate tune --policy {search.policy} --scenario {','.join(names)}"
            f"{' --once' if self.once else ''} --evaluations {self.evaluations} "
            f"--requests {self.protocol.requests} --loads {loads} --seed {self.seed}"
            f"{' --bundle DIR' if self.bundle else ''}",
        }
