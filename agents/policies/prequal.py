"""`prequal`: probing to reduce queuing and latency (Wydrowski et al., NSDI 2024)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation
from steersman.traces.settings import Settings

_QUEUE = REPLICA_INDEX["queue"]
_LATENCIES = ("e2e", "ttft", "tpot")
_MEAN = [REPLICA_INDEX[f"mean_{name}_s"] for name in _LATENCIES]
_ESTIMATE = [REPLICA_INDEX[f"{name}_s"] for name in _LATENCIES]


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


class Prequal(ScoredPolicy):
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
    precision: ClassVar[type[np.floating]] = np.float64

    def __init__(self, options: PrequalOptions, rng: np.random.Generator) -> None:
        recent = options.signal == "recent"
        super().__init__(rng, options.hot_quantile, float(_LATENCIES.index(options.latency)), recent)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> NDArray[np.float32]:
        """The latency that decides among the cold, (..., n), in seconds."""
        _, latency, recent = constants
        estimate_s = _pick(observation.replicas[..., _ESTIMATE], latency)
        mean_s = _pick(observation.replicas[..., _MEAN], latency)
        return np.where((recent > 0) & (mean_s > 0), mean_s, estimate_s)

    @classmethod
    def ranking(
        cls, observation: Observation, constants: Constants
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """The quickest of the cold, else the fewest requests in flight."""
        mask, queue = observation.mask, observation.replicas[..., _QUEUE]
        cold = mask & (queue <= _quantile(queue, mask, constants[0]))
        some = cold.any(axis=-1, keepdims=True)
        return np.where(some, cls.price(observation, constants), queue), np.where(some, cold, mask)


def _pick(columns: NDArray[np.float32], index: float | NDArray[np.float64]) -> NDArray[np.float32]:
    """One of the last dimension, (..., n): of all, or another one for each policy."""
    if isinstance(index, np.ndarray):
        chosen = index.astype(np.int64)[..., None]
        return np.take_along_axis(columns, chosen, axis=-1)[..., 0]
    return columns[..., int(index)]


def _quantile(
    values: NDArray[np.float32], mask: NDArray[np.bool_], q: float | NDArray[np.float64]
) -> NDArray[np.float32]:
    """The least value that a share q of the allowed does not exceed, (..., 1); with q = 0 everybody is
    hot."""
    rank = np.ceil(q * np.count_nonzero(mask, axis=-1, keepdims=True) - 1e-9).astype(np.int64)
    ordered = np.sort(np.where(mask, values, np.inf), axis=-1)
    limit = np.take_along_axis(ordered, np.maximum(rank - 1, 0), axis=-1)
    return np.where(rank > 0, limit, -np.inf)
