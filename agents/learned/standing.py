"""Where a training stands: what a checkpoint keeps of it, and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from steersman.agents.learned.checkpoint import Checkpoint
from steersman.agents.learned.counterfactual import States
from steersman.agents.learned.network import RoutingNetwork

Curves = dict[str, list[tuple[int, float]]]
"""Name of a figure → (step, value) along the training."""


@dataclass
class Standing:
    """Of one training."""

    network: RoutingNetwork
    best: RoutingNetwork
    best_ratio: float = 1.0
    """Cost over marginal cost's, of the best."""
    spent_s: float = 0.0
    """Before this process began."""
    rounds: int = 0
    """Counterfactual ones."""
    updates: int = 0
    """Of PPO."""
    decisions: int = 0
    """Of PPO."""
    asked: int = 0
    """States asked about in counterfactual rounds."""
    curves: Curves = field(default_factory=dict)
    told: list[list[float]] = field(default_factory=list)
    """What each generation of the evolution was told."""
    known: list[States] = field(default_factory=list)
    """Of the rounds that are kept."""

    def note(self, name: str, step: int, value: float) -> None:
        """A point of a curve."""
        self.curves.setdefault(name, []).append((step, float(value)))

    def checkpoint(self, spent_s: float) -> Checkpoint:
        """Everything that is needed to go on from here."""
        return Checkpoint(
            network=self.network,
            best=self.best,
            told=self.told,
            numbers={
                "best_ratio": self.best_ratio,
                "spent_s": spent_s,
                "rounds": self.rounds,
                "updates": self.updates,
                "decisions": self.decisions,
                "asked": self.asked,
            },
            curves=self.curves,
            states=States.join(self.known) if self.known else None,
        )

    @staticmethod
    def of(saved: Checkpoint) -> Standing:
        """The inverse of `checkpoint`."""
        numbers = saved.numbers
        return Standing(
            network=saved.network,
            best=saved.best,
            told=saved.told,
            best_ratio=numbers["best_ratio"],
            spent_s=numbers["spent_s"],
            rounds=int(numbers["rounds"]),
            updates=int(numbers["updates"]),
            decisions=int(numbers["decisions"]),
            asked=int(numbers["asked"]),
            curves=saved.curves,
            known=[] if saved.states is None else [saved.states],
        )
