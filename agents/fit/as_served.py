"""Predictions as a router would have served them: each p90 with the width learned by then."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.latency import LEAST_S
from steersman.predictors.width import Awaited, Widths

Values = NDArray[np.float64]


def as_served(
    predicted: Values, decided_s: Values, ttft_s: Values, tpot_s: Values, ended_s: Values
) -> Values:
    """One run's predictions, by causal replay: an outcome teaches what is decided after it is known.

    Args:
        predicted: (n, 4), by a model, in the order of `LATENCY_OUTPUTS`.
        decided_s: (n,), in any order.
        ttft_s: (n,), from the decision.
        tpot_s: (n,), 0 for an answer of one token.
        ended_s: (n,), on the clock of `decided_s`.

    Returns:
        (n, 4), with other p90.
    """
    n = len(predicted)
    first_s = decided_s + ttft_s
    when = np.concatenate((first_s, np.maximum(ended_s, first_s), decided_s))
    # What is known at the moment of a decision is known to it.
    order = np.lexsort((np.repeat((0, 1, 2), n), when)).tolist()
    widths, served = Widths(), predicted.copy()
    flying: dict[int, Awaited] = {}
    for event in order:
        kind, row = divmod(event, n)
        if kind == 2:
            served[row] = widths.apply(float(decided_s[row]), predicted[row])
            flying[row] = widths.expect(float(decided_s[row]), predicted[row])
        elif kind == 0:
            flying[row].first_token(float(ttft_s[row]))
        else:
            awaited = flying.pop(row)
            if tpot_s[row] > LEAST_S:
                awaited.finish(float(tpot_s[row]))
    return served
