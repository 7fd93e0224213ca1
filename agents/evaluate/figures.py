"""The figures of one run: what happened to the requests that arrived in the measured window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.cost import request_costs
from steersman.agents.evaluate.statistics import jain_index, max_over_mean
from steersman.env.outcomes import STATUSES, OutcomeTable
from steersman.traces.schema import Status

Float64 = NDArray[np.float64]


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


def summarise(outcomes: OutcomeTable, *, start_s: float, end_s: float, replicas: int) -> Figures:
    """The figures of a run, over the requests that arrived from `start_s` on and before `end_s`.

    Requests that their client cancelled are left out: nobody waited for them.

    Args:
        replicas: size of the pool.
    """
    counted = (outcomes.arrival_s >= start_s) & (outcomes.arrival_s < end_s)
    counted &= outcomes.status != STATUSES.index(Status.CANCELLED)
    n = int(counted.sum())
    ok = outcomes.ok[counted]
    cost = request_costs(
        ok,
        outcomes.ttft_s[counted],
        outcomes.tpot_s[counted],
        outcomes.ttft_slo_s[counted],
        outcomes.tpot_slo_s[counted],
    )
    met = outcomes.slo_met[counted]
    input_tokens = outcomes.input_tokens[counted].astype(np.float64)
    well = counted & outcomes.ok
    asked = outcomes.replica[counted]
    served = asked >= 0
    load = np.bincount(asked[served], input_tokens[served], minlength=replicas).astype(np.float64)
    counts = np.bincount(asked[served], minlength=replicas)
    return Figures(
        requests=n,
        j=float(np.average(cost, weights=outcomes.weight[counted])) if n else float("nan"),
        j1=float(cost.mean()) if n else float("nan"),
        slo_attainment=float(met.mean()) if n else float("nan"),
        goodput_rps=float(met.sum()) / (end_s - start_s),
        failed=int((~ok).sum()),
        **_times("ttft", outcomes.ttft_s[well]),
        **_times("tpot", outcomes.tpot_s[well]),
        **_times("e2e", outcomes.e2e_s[well]),
        jain=jain_index(load),
        max_over_mean=max_over_mean(load),
        prefix_hit_rate=float(outcomes.cached_tokens[counted].sum())
        / max(float(input_tokens.sum()), 1.0),
        preemptions=int(outcomes.preemptions[counted].sum()),
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
