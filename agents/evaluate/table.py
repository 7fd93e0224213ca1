"""All runs of an evaluation, and the comparisons drawn from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.figures import Figures
from steersman.agents.evaluate.statistics import (
    MARGIN,
    NonInferiority,
    Ratio,
    non_inferiority,
    paired_ratio,
)
from steersman.traces.errors import ConfigError

USUAL_LOADS = (0.5, 1.0)
"""Cells with loads from here to there are summed up together; idle and overloaded ones apart, load by
load: there other things matter, and their ratios would drown the others'."""

USUAL = "usual loads"


class Cell(NamedTuple):
    """A scenario at a load."""

    scenario: str
    load: float

    def __str__(self) -> str:
        return f"{self.scenario} {self.load:.0%}"


@dataclass(frozen=True)
class Run:
    """One policy, once."""

    policy: str
    cell: Cell
    seed: int
    figures: Figures
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Decisions a guard gave to another policy, by reason; empty without a guard."""


@dataclass(frozen=True)
class EvaluationTable:
    """Runs of several policies on the same cells and seeds, with common random numbers."""

    runs: tuple[Run, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """In the order they were first run."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """In the order they were first run."""
        return tuple(dict.fromkeys(run.cell for run in self.runs))

    def groups(self) -> dict[str, list[Cell]]:
        """The cells that are summed up together, by what the sum is called."""
        least, most = USUAL_LOADS
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            usual = least <= cell.load <= most
            found.setdefault(USUAL if usual else f"{cell.load:.0%} load", []).append(cell)
        return found if len(found) > 1 else {"all cells": list(self.cells)}

    def only(self, cells: Collection[Cell]) -> EvaluationTable:
        """The runs in these cells."""
        return EvaluationTable(tuple(run for run in self.runs if run.cell in cells))

    def usual(self) -> EvaluationTable:
        """The runs that are summed up together: at usual loads, or all where there are none such."""
        return self.only(self.groups().get(USUAL, self.cells))

    def by_seed(self, policy: str, cell: Cell, figure: str = "j") -> NDArray[np.float64]:
        """A figure of a policy in a cell, one per seed in ascending order, (seeds,)."""
        chosen = [run for run in self.runs if run.policy == policy and run.cell == cell]
        chosen.sort(key=lambda run: run.seed)
        return np.array([getattr(run.figures, figure) for run in chosen], dtype=np.float64)

    def mean(self, policy: str, cell: Cell, figure: str = "j") -> float:
        """Mean over seeds."""
        return float(self.by_seed(policy, cell, figure).mean())

    def ratio(
        self, policy: str, baseline: str, *, figure: str = "j", cells: Sequence[Cell] | None = None
    ) -> Ratio:
        """Ratio of a policy's figure to a baseline's over cells (all by default) and seeds.

        Raises:
            ConfigError: one of the two was not run.
        """
        return paired_ratio(self._pairs(policy, baseline, figure, cells))

    def not_worse(
        self, policy: str, baseline: str, *, figure: str = "j", margin: float = MARGIN
    ) -> dict[Cell, NonInferiority]:
        """In which cells a policy is not worse than a baseline, by `margin`; see `non_inferiority`.

        Raises:
            ConfigError: one of the two was not run.
            ValueError: a cell has fewer than two seeds.
        """
        return non_inferiority(self._pairs(policy, baseline, figure, None), margin=margin)

    def best(self, cell: Cell, policies: Sequence[str], figure: str = "j") -> str:
        """Which of these has the least mean of a figure in a cell."""
        return min(policies, key=lambda policy: self.mean(policy, cell, figure))

    def ranked(self, policies: Sequence[str], figure: str = "j") -> list[str]:
        """These by the mean log of a figure over all cells, the least first."""

        def mean_log(policy: str) -> float:
            return float(
                np.mean([np.log(self.by_seed(policy, cell, figure)).mean() for cell in self.cells])
            )

        return sorted(policies, key=mean_log)

    def _pairs(
        self, policy: str, baseline: str, figure: str, cells: Sequence[Cell] | None
    ) -> dict[Cell, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        for name in (policy, baseline):
            if name not in self.policies:
                raise ConfigError(f"policy '{name}' was not run; run: {', '.join(self.policies)}")
        return {
            cell: (self.by_seed(policy, cell, figure), self.by_seed(baseline, cell, figure))
            for cell in (self.cells if cells is None else cells)
        }

    def fallbacks(self, policy: str, cell: Cell) -> dict[str, int]:
        """Guard trips by reason, over all seeds."""
        total: dict[str, int] = {}
        for run in self.runs:
            if run.policy == policy and run.cell == cell:
                for reason, count in run.fallbacks.items():
                    total[reason] = total.get(reason, 0) + count
        return total

    def overruled(self, policy: str) -> float:
        """Share of a policy's decisions that its guard took over, over all runs."""
        trips = sum(sum(self.fallbacks(policy, cell).values()) for cell in self.cells)
        decided = sum(run.figures.requests for run in self.runs if run.policy == policy)
        return min(trips / max(decided, 1), 1.0)

    def rows(
        self, baseline: str, policies: Sequence[str] | None = None, *, figure: str = "j"
    ) -> list[dict[str, Any]]:
        """Ratios of a figure for a benchmark file: `{"name", "value", "lo", "hi", "unit", "note"}`, over
        each of `groups` and in each cell."""
        rows = []
        for policy in self.policies if policies is None else policies:
            if policy == baseline:
                continue
            groups = [(cells, where) for where, cells in self.groups().items()]
            for cells, where in [*groups, *(([cell], str(cell)) for cell in self.cells)]:
                ratio = self.ratio(policy, baseline, figure=figure, cells=cells)
                rows.append(
                    {
                        "name": f"{figure.upper()} of {policy} over {baseline}, {where}",
                        "value": ratio.value,
                        "lo": ratio.lo,
                        "hi": ratio.hi,
                        "unit": "ratio",
                        "note": "paired bootstrap over seeds; under 1, the first is cheaper",
                    }
                )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Every run, flat, for JSON."""
        return {
            "runs": [
                {
                    "policy": run.policy,
                    "scenario": run.cell.scenario,
                    "load": run.cell.load,
                    "seed": run.seed,
                    **asdict(run.figures),
                    "fallbacks": {k: v for k, v in run.fallbacks.items() if v},
                }
                for run in self.runs
            ]
        }
