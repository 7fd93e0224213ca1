"""The figures of one run: what happened to the requests that arrived in the measured window."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.cost import Objectives, class_weights, request_costs
from steersman.agents.evaluate.statistics import jain_index, max_over_mean

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Ended:
    """How n requests ended. Every column is (n,).

    Requests that their client cancelled are left out: nobody waited for them.
    """

    arrival_s: Float64
    ended_well: NDArray[np.bool_]
    replica: Int64
    """-1: none."""
    ttft_s: Float64
    """NaN where there was none, as `tpot_s` and `e2e_s`."""
    tpot_s: Float64
    e2e_s: Float64
    input_tokens: Int64
    cached_tokens: Int64
    preemptions: Int64
    priority: NDArray[np.int8]

    def arrived(self, start_s: float, end_s: float) -> Ended:
        """Those that arrived from `start_s` on and before `end_s`."""
        inside = (self.arrival_s >= start_s) & (self.arrival_s < end_s)
        return Ended(*(getattr(self, column.name)[inside] for column in fields(self)))


@dataclass(frozen=True)
class Figures:
    """One run in numbers; times are unweighted, in seconds, over requests that ended well."""

    requests: int
    j: float
    """Class-weighted mean cost."""
    j1: float
    """Mean cost, all weights 1."""
    slo_attainment: float
    """Share of all requests that met both objectives."""
    goodput_rps: float
    """Requests per second that met them."""
    failed: int
    """Refused, failed or unfinished."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p90_s: float
    e2e_p99_s: float
    jain: float
    """Jain's index over the replicas' prompt tokens."""
    max_over_mean: float
    prefix_hit_rate: float
    """Share of prompt tokens that came from a prefix cache."""
    preemptions: int
    shares: tuple[float, ...]
    """Share of the requests that each replica got."""


def summarise(ended: Ended, objectives: Objectives, *, replicas: int, window_s: float) -> Figures:
    """The figures of a run.

    Args:
        ended: the requests of the measured window.
        objectives: theirs.
        replicas: size of the pool.
        window_s: length of the window.
    """
    costs = request_costs(ended.ended_well, ended.ttft_s, ended.tpot_s, objectives)
    weights = class_weights(ended.priority)
    n = len(costs.cost)
    served = ended.replica >= 0
    tokens = ended.input_tokens[served].astype(np.float64)
    load = np.bincount(ended.replica[served], tokens, minlength=replicas).astype(np.float64)
    counts = np.bincount(ended.replica[served], minlength=replicas)
    well = ended.ended_well
    return Figures(
        requests=n,
        j=float(np.average(costs.cost, weights=weights)) if n else float("nan"),
        j1=float(costs.cost.mean()) if n else float("nan"),
        slo_attainment=float(costs.met.mean()) if n else float("nan"),
        goodput_rps=float(costs.met.sum()) / window_s,
        failed=int((~well).sum()),
        **_times("ttft", ended.ttft_s[well]),
        **_times("tpot", ended.tpot_s[well]),
        **_times("e2e", ended.e2e_s[well]),
        jain=jain_index(load),
        max_over_mean=max_over_mean(load),
        prefix_hit_rate=float(ended.cached_tokens.sum()) / max(float(ended.input_tokens.sum()), 1.0),
        preemptions=int(ended.preemptions.sum()),
        shares=tuple(float(share) for share in counts / max(int(counts.sum()), 1)),
    )


def _times(name: str, seconds: Float64) -> dict[str, float]:
    """Mean and quantiles under their field names; NaN without any."""
    if not len(seconds):
        return {f"{name}_{key}_s": float("nan") for key in ("mean", "p50", "p90", "p99")}
    p50, p90, p99 = np.quantile(seconds, (0.5, 0.9, 0.99))
    return {
        f"{name}_mean_s": float(seconds.mean()),
        f"{name}_p50_s": float(p50),
        f"{name}_p90_s": float(p90),
        f"{name}_p99_s": float(p99),
    }
