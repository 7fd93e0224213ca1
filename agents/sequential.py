"""Is one arm worse than the other? Tests that may be looked at after every outcome.

Both are e-processes: products of bets whose expectation under the null, given all that came before, is
at most 1. By Ville's inequality the product ever reaches 1 / alpha with probability alpha at most, so
that looking often costs nothing, and stopping at any moment is fair.

- `RateTest`, where requests are split over two arms at the same time. Batches of outcomes are bet on
  with the e-variable for two proportions of Turner, Ly and Grünwald ("Generic E-variables for exact
  sequential k-sample tests that allow for optional stopping", 2024)::

      E = p_a^k_a (1-p_a)^(n_a-k_a) p_b^k_b (1-p_b)^(n_b-k_b) / (p_0^k (1-p_0)^(n-k))
      p_0 = (n_a p_a + n_b p_b) / (n_a + n_b)

  whose expectation is at most 1 if both arms have the same rate in that batch, whatever that rate is:
  it may change from batch to batch, as it does when the traffic does. p_b is what the reference arm has
  shown before, p_a has odds that are larger by a factor; the mean over several factors is an e-process
  again.
- `BlockTest`, where whole stretches of time are given to one arm by lot (switchback). There, outcomes
  of a stretch are alike whoever serves; what is independent is the lot itself. Each stretch pays
  `1 + bet * (lot - share) * rank`, with the rank of its outcome among the stretches before it, scaled to
  [-1, 1]. If the arm makes no difference, the lot is independent of the rank: expectation 1.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

ODDS = (1.5, 2.0, 3.0, 6.0, 15.0)
"""Factors on the odds that are bet on, in both directions."""
BETS = (0.25, 0.5, 0.75, 0.95)
"""Of `BlockTest`, relative to the largest that cannot lose everything."""
PRIOR_OUTCOMES = 100.0
"""So many outcomes count for the prior rate."""
REFERENCE_Z = 2.58
"""The rate of an arm that is no longer asked is taken at the upper end of its 99 % interval."""
LEAST_RATE = 1e-4
_MOST_RANKED = 1000


def log_mean_exp(logs: Sequence[float]) -> float:
    """Log of the mean of exp."""
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs) / len(logs))


@dataclass
class RateTest:
    """The rate of bad outcomes of arm A against that of arm B.

    Args:
        prior: rate expected before anything is known; costs power where wrong, never validity.
    """

    prior: float
    worse: list[float] = field(default_factory=lambda: [0.0] * len(ODDS))
    """Log of the product for each factor: A has the higher rate."""
    better: list[float] = field(default_factory=lambda: [0.0] * len(ODDS))
    """A has the lower rate."""
    a: list[int] = field(default_factory=lambda: [0, 0])
    """Outcomes of A, and bad ones."""
    b: list[int] = field(default_factory=lambda: [0, 0])
    """Of B."""

    @property
    def log_worse(self) -> float:
        """Log of the evidence that A is worse than B."""
        return log_mean_exp(self.worse)

    @property
    def log_better(self) -> float:
        """Log of the evidence that A is better than B."""
        return log_mean_exp(self.better)

    def add(self, n_a: int, k_a: int, n_b: int, k_b: int) -> None:
        """A batch of outcomes of both arms from the same time: n of each, k of them bad."""
        p_b = self._expected()
        for i, odds in enumerate(ODDS):
            self.worse[i] += _log_e(n_a, k_a, n_b, k_b, _shifted(p_b, odds), p_b)
            self.better[i] += _log_e(n_a, k_a, n_b, k_b, _shifted(p_b, 1.0 / odds), p_b)
        self.a = [self.a[0] + n_a, self.a[1] + k_a]
        self.b = [self.b[0] + n_b, self.b[1] + k_b]

    def add_alone(self, n_a: int, k_a: int, *, allowed: float = 0.0) -> None:
        """Outcomes of A while B gets no traffic: against the most that B's rate was before, and
        `allowed` more.

        Valid as long as A's rate would not be above that, were it the same as B: not where the traffic
        itself became worse since.
        """
        reference = min(upper_rate(self.b[0], self.b[1]) + allowed, 0.5)
        for i, odds in enumerate(ODDS):
            p_a = _shifted(reference, odds)
            self.worse[i] += _log_likelihood(n_a, k_a, p_a) - _log_likelihood(n_a, k_a, reference)
        self.a = [self.a[0] + n_a, self.a[1] + k_a]

    def _expected(self) -> float:
        rate = (self.b[1] + self.prior * PRIOR_OUTCOMES) / (self.b[0] + PRIOR_OUTCOMES)
        return min(max(rate, LEAST_RATE), 0.5)


@dataclass
class BlockTest:
    """A figure of stretches of time, each given to arm A by lot with a known probability."""

    worse: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    """Log of the product for each bet: A has the higher figures."""
    better: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    seen: list[float] = field(default_factory=list)
    """Figures so far, sorted; of the newest stretches if there were many."""
    order: list[float] = field(default_factory=list)
    """The same in the order of time."""
    a: int = 0
    """Stretches of A."""
    b: int = 0

    @property
    def log_worse(self) -> float:
        """Log of the evidence that A's figures are higher."""
        return log_mean_exp(self.worse)

    @property
    def log_better(self) -> float:
        """Log of the evidence that A's figures are lower."""
        return log_mean_exp(self.better)

    def add(self, figure: float, share: float, *, is_a: bool) -> None:
        """A stretch is over.

        Args:
            figure: what it showed; higher is worse.
            share: probability with which it went to A.
            is_a: whether it did.
        """
        rank = self._rank(figure)
        surprise = (1.0 if is_a else 0.0) - share
        largest = max(share, 1.0 - share)
        for i, bet in enumerate(BETS):
            step = bet / largest * surprise * rank
            self.worse[i] += math.log1p(step)
            self.better[i] += math.log1p(-step)
        bisect.insort(self.seen, figure)
        self.order.append(figure)
        if len(self.order) > _MOST_RANKED:
            self.seen.remove(self.order.pop(0))
        self.a, self.b = self.a + is_a, self.b + (not is_a)

    def _rank(self, figure: float) -> float:
        """Among those before, from -1 (lowest) to 1; ties in the middle."""
        if not self.seen:
            return 0.0
        below = bisect.bisect_left(self.seen, figure)
        up_to = bisect.bisect_right(self.seen, figure)
        return (below + up_to) / len(self.seen) - 1.0


def upper_rate(outcomes: int, bad: int) -> float:
    """Upper end of Wilson's 99 % interval for a rate."""
    if outcomes == 0:
        return 0.5
    z2 = REFERENCE_Z**2
    rate = bad / outcomes
    middle = rate + z2 / (2.0 * outcomes)
    spread = REFERENCE_Z * math.sqrt(rate * (1.0 - rate) / outcomes + z2 / (4.0 * outcomes**2))
    return min(max((middle + spread) / (1.0 + z2 / outcomes), LEAST_RATE), 0.5)


def _shifted(rate: float, odds: float) -> float:
    """The rate whose odds are larger by this factor."""
    return odds * rate / (1.0 - rate + odds * rate)


def _log_e(n_a: int, k_a: int, n_b: int, k_b: int, p_a: float, p_b: float) -> float:
    if n_a == 0 or n_b == 0:
        return 0.0  # nothing to compare: p_0 is the arm's own rate
    p_0 = (n_a * p_a + n_b * p_b) / (n_a + n_b)
    return (
        _log_likelihood(n_a, k_a, p_a)
        + _log_likelihood(n_b, k_b, p_b)
        - _log_likelihood(n_a + n_b, k_a + k_b, p_0)
    )


def _log_likelihood(outcomes: int, bad: int, rate: float) -> float:
    return bad * math.log(rate) + (outcomes - bad) * math.log1p(-rate)
