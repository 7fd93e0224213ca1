"""A case whose answer is known: what the estimators are checked against.

Two kinds of requests meet three replicas. What each choice costs on average, how often each kind comes
and how both policies choose is given below, so the target's mean cost is a sum of six terms::

    V = sum_x p(x) sum_a pi(a|x) E[cost | x, a]

The model of costs that the doubly robust estimate leans on is wrong on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steersman.agents.offpolicy.estimators import Logged, estimate

ARRIVES = np.array((0.7, 0.3))
COST = np.array(((1.0, 2.0, 4.0), (3.0, 1.5, 1.0)))
"""(kinds, replicas): mean cost."""
LOGGING = np.array(((0.8, 0.15, 0.05), (0.1, 0.6, 0.3)))
TARGET = np.array(((0.1, 0.9, 0.0), (0.0, 0.2, 0.8)))
WRONG = np.array(((1.5, 1.5, 1.5), (2.0, 2.0, 2.0)))
"""The model: it knows no replica from another."""
TRUTH = float((ARRIVES[:, None] * TARGET * COST).sum())


@dataclass(frozen=True)
class KnownCase:
    """What came of it."""

    truth: float
    estimates: dict[str, float]

    @property
    def dr_error(self) -> float:
        """|DR - truth| / truth; the figure `ope.dr_error_known_case`."""
        return abs(self.estimates["dr"] - self.truth) / self.truth


def draw(decisions: int, seed: int) -> Logged:
    """So many decisions of the logging policy; a cost is half to one and a half times its mean."""
    rng = np.random.default_rng(seed)
    kind = (rng.random(decisions) >= ARRIVES[0]).astype(np.int64)
    done = (rng.random((decisions, 1)) > LOGGING[kind].cumsum(axis=1)).sum(axis=1)
    return Logged(
        cost=COST[kind, done] * rng.uniform(0.5, 1.5, decisions),
        propensity=LOGGING[kind, done],
        chance=TARGET[kind, done],
        modelled=WRONG[kind, done],
        expected=(TARGET * WRONG).sum(axis=1)[kind],
    )


def known_case(decisions: int = 400_000, seed: int = 0) -> KnownCase:
    """The estimators on so many decisions, and the truth."""
    found = estimate(draw(decisions, seed))
    return KnownCase(TRUTH, {name: one.value for name, one in found.items()})
