"""The contract of a routing policy.

A policy looks at an `Observation` and answers with a `Decision`. It is the same object in the
simulator and in the router, so it

- never blocks, never does I/O, and takes well under a millisecond;
- chooses only replicas whose mask is True, and answers `choice = -1` if there are none;
- reports the true probability of its choice (`propensity`), ties and exploration included;
- is permutation-equivariant unless it says otherwise (round robin, hashing): reordering the candidates
  reorders the answer and nothing else;
- draws randomness only from the generator it was given.

`agents/policy_checker.py` checks all of this for any policy, ours or a user's.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from steersman.traces.schema import Decision, Observation


@runtime_checkable
class Policy(Protocol):
    """Chooses a replica for one request."""

    @property
    def name(self) -> str:
        """The name in configurations, logs and metrics; for example `p2c`."""
        ...

    @property
    def version(self) -> str:
        """Which artifact or which constants; empty for a policy without any."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """Choose for a single observation (no batch dimensions)."""
        ...


def settle(policy: Policy) -> None:
    """Let a policy do what it has put off until its choice is on its way, if it has a `settle` for that.

    What it decides next must not depend on whether it was asked to.
    """
    put_off = getattr(policy, "settle", None)
    if put_off is not None:
        put_off()


NO_CANDIDATE = -1
"""`Decision.choice` when the mask allows nobody."""

LOWEST = np.finfo(np.float32).min
"""The score that a NaN counts as."""


def argmax_decision(
    scores: NDArray[np.float32],
    mask: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    policy: str,
    version: str = "",
) -> Decision:
    """The highest allowed score wins; ties are drawn evenly.

    Args:
        scores: (n,), higher is better. Entries outside the mask are ignored; a NaN loses to every
            number, so that one broken feature cannot stop the traffic.
        mask: (n,).
    """
    if len(mask) and np.count_nonzero(mask) == len(mask):
        # Nearly always; and what follows takes three times as long.
        top = int(scores.argmax())
        if math.isfinite(scores[top]) and np.count_nonzero(scores == scores[top]) == 1:
            return Decision(top, policy, version, scores=scores)
    allowed = np.where(mask, np.fmax(scores, LOWEST), -np.inf)
    best = allowed.max(initial=-np.inf)
    if best == -np.inf:
        return Decision(NO_CANDIDATE, policy, version, scores=scores)
    tied = np.flatnonzero(allowed == best)
    choice = int(tied[0]) if len(tied) == 1 else int(tied[rng.integers(len(tied))])
    return Decision(choice, policy, version, propensity=1.0 / len(tied), scores=scores)
