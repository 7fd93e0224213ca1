"""`prequal`: probing to reduce queuing and latency (Wydrowski et al., NSDI 2024)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_QUEUE = REPLICA_INDEX["queue"]
_MEAN = {name: REPLICA_INDEX[f"mean_{name}_s"] for name in ("e2e", "ttft", "tpot")}
_ESTIMATE = {name: REPLICA_INDEX[f"{name}_s"] for name in ("e2e", "ttft", "tpot")}


class PrequalOptions(Settings):
    """Options of `prequal`."""

    hot_quantile: float = Field(
        default=0.84,
        ge=0.0,
        le=1.0,
        description="Above this quantile of requests in flight a replica is hot (0.6 to 0.9).",
    )
    latency: Literal["e2e", "ttft", "tpot"] = Field(
        default="e2e", description="Which latency decides among the cold."
    )
    signal: Literal["estimate", "recent"] = Field(
        default="estimate",
        description="Its estimate at the present load, or the mean of recent outcomes.",
    )


class Prequal:
    """Hot and cold, lexicographically.

    A replica with more requests in flight than the `hot_quantile` of all candidates is hot. The cold one
    with the least latency is taken; if all are hot, the one with the fewest requests in flight.

    Prequal estimates a replica's latency from recent requests that met about as many in flight. So does,
    by default, the estimate here: the profile's at the present load, corrected by recent outcomes.

    The scraped metrics are the asynchronous probes: they come of themselves, are reused until the next
    one, and the requests dispatched since are added, as Prequal does for reused probes. So every
    replica is in the probe pool, where Prequal keeps the last sixteen probes of a large fleet.
    """

    name: ClassVar[str] = "prequal"
    version: ClassVar[str] = ""

    def __init__(self, options: PrequalOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng

    def decide(self, observation: Observation) -> Decision:
        """The quickest of the cold."""
        mask, replicas = observation.mask, observation.replicas
        if not mask.any():
            return Decision(NO_CANDIDATE, self.name)
        queue = replicas[:, _QUEUE]
        cold = mask & (queue <= _quantile(queue[mask], self._options.hot_quantile))
        if not cold.any():
            return argmax_decision(-queue, mask, self._rng, policy=self.name)
        latency_s = replicas[:, _ESTIMATE[self._options.latency]]
        if self._options.signal == "recent":
            mean = replicas[:, _MEAN[self._options.latency]]
            latency_s = np.where(mean > 0, mean, latency_s)
        return argmax_decision(-latency_s, cold, self._rng, policy=self.name)


def _quantile(values: NDArray[np.float32], q: float) -> float:
    """The least value that a share q of all does not exceed; with q = 0 everybody is hot."""
    rank = math.ceil(q * len(values) - 1e-9)
    return float(np.sort(values)[rank - 1]) if rank > 0 else -math.inf
