"""Tables of invented figures, for what is reckoned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from steersman.agents.evaluate.figures import Figures
from steersman.agents.evaluate.table import Cell, EvaluationTable, Run


def figures(**changes: Any) -> Figures:
    """A run in which every number is 1, but for these."""
    values: dict[str, Any] = {field.name: 1.0 for field in fields(Figures)} | {"shares": (1.0,)}
    return Figures(**(values | changes))


def table_of(
    costs: Mapping[str, Mapping[Cell, Sequence[float]]], **changes: Mapping[str, Any]
) -> EvaluationTable:
    """Runs with these J, per policy, cell and seed.

    Args:
        changes: other figures by policy.
    """
    return EvaluationTable(
        tuple(
            Run(policy, cell, seed, figures(j=j, j1=j, **changes.get(policy, {})))
            for policy, cells in costs.items()
            for cell, by_seed in cells.items()
            for seed, j in enumerate(by_seed)
        )
    )
