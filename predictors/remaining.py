"""How much of an answer is still to come, given what has been (SPEC A2): it shrinks while it streams.

Before the first token the length L is known by two quantiles. The log-logistic distribution through
them has P(L > x) = 1 / (1 + (x / p50)^b) with b = ln 9 / ln(p90 / p50), a tail as heavy as answers have,
and conditional quantiles in closed form: of the answers longer than t, a share q is at most ::

    p50 * ((1 + (t / p50)^b) / (1 - q) - 1)^(1 / b)
"""

from __future__ import annotations

import math

LOG_9 = math.log(9.0)
LEAST_RATIO = 1.05
"""Of p90 to p50: a model that is surer than this is not believed."""
MOST_LOG = 700.0
"""Beyond this `exp` overflows; the answer is then far longer than was foreseen."""


def remaining(p50: float, p90: float, produced: float, limit: float = 0.0) -> tuple[float, float]:
    """p50 and p90 of the tokens still to come.

    Args:
        p50, p90: predicted output tokens, at least 1 and in this order.
        produced: output tokens so far, which are not the last.
        limit: the client's limit on output tokens; 0: none.

    Returns:
        Two numbers, at least 1 each (the answer goes on), p50 first, and at most what the limit leaves.
        With nothing produced they are p50 and p90.
    """
    if produced <= 0.0:
        # As they are, even where p90 is too near for the distribution.
        return _bounded(p50, 0.0, limit), _bounded(p90, 0.0, limit)
    steepness = LOG_9 / math.log(max(p90 / p50, LEAST_RATIO))
    gone = math.exp(min(steepness * (math.log(produced) - math.log(p50)), MOST_LOG))
    half = p50 * math.exp(math.log(1.0 + 2.0 * gone) / steepness)
    most = p50 * math.exp(math.log(9.0 + 10.0 * gone) / steepness)
    return _bounded(half, produced, limit), _bounded(most, produced, limit)


def _bounded(total: float, produced: float, limit: float) -> float:
    left = total - produced
    if limit > 0.0:
        left = min(left, limit - produced)
    return max(left, 1.0)
