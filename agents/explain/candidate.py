"""One replica of a decision's pool, as it was seen, and what it would have cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A replica, chosen or not."""

    replica: str
    chosen: bool
    barred: str
    """Why it could not be chosen; empty if it could."""
    score: float | None
    """The deciding policy's, higher is better; None where it does not score."""
    features: dict[str, float]
    """All of `REPLICA_FEATURES`, in natural units: load, match, predicted TTFT and TPOT, costs."""
    cost: dict[str, float]
    """`COST_TERMS` of its marginal cost, in units of J."""

    @property
    def marginal_cost(self) -> float:
        """In units of J: what this request adds to the cost of all, if it goes there."""
        return self.features["marginal_cost"]

    @property
    def rank(self) -> tuple[bool, float]:
        """To sort by: the best first, those that could not be chosen last."""
        return bool(self.barred), self.marginal_cost if self.score is None else -self.score
