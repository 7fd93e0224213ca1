"""Four measured runs of vLLM: fit on the first 100 requests of each, predict the other 200."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fidelity.comparison import Comparison, perturbed_mean, quantiles
from steersman.env.iterations import cost_of, play_iterations, with_cost
from steersman.env.profiles import load_profile
from steersman.env.regression import Measured, fit_cost
from steersman.traces.schema import HardwareProfile, Request
from steersman.traces.trace import Trace

Floats = NDArray[np.float64]

FITTED_REQUESTS = 100
_ROOMY = 1_000_000
"""KV tokens of a run whose use of memory was not recorded: more than it ever needs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine of a run was started with (the run's own description)."""

    max_num_seqs: int
    max_batched_tokens: int = 2048
    kv_capacity_tokens: int = _ROOMY


LIMITS = {
    "RTX4090_Llama-3.1-8B": Limits(256, kv_capacity_tokens=41_408),
    "RTXPRO6000_Llama-3.1-8B": Limits(128),
    "RTXPRO6000_Qwen3-32B": Limits(128),
    # Two data-parallel engines whose experts are shared run in lock step: one engine of twice the size.
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": Limits(256, 4096),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run; n requests in order of arrival."""

    name: str
    trace: Trace
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats


def load_runs(path: Path) -> list[Run]:
    """The runs of a gzipped CSV: run, arrival_s, input_toks, output_toks, ttft_s, e2e_s, tpot_s."""
    rows: dict[str, list[dict[str, str]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["run"], []).append(row)
    return [_run(name, found) for name, found in rows.items()]


def fit_run(run: Run) -> HardwareProfile:
    """A profile fitted on the first requests alone. The lengths of all are what is simulated."""
    limits = LIMITS[run.name]
    start = replace(
        load_profile("a100-llama-3.1-8b"),
        name=run.name,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_batched_tokens,
        kv_capacity_tokens=limits.kv_capacity_tokens,
    )
    seen = np.arange(len(run.trace)) < FITTED_REQUESTS
    measured = Measured(np.where(seen, run.ttft_s, np.nan), np.where(seen, run.e2e_s, np.nan))
    fit = fit_cost(
        lambda cost: play_iterations(with_cost(start, cost), run.trace), measured, cost_of(start)
    )
    return with_cost(start, fit.cost)


def compare(runs: list[Run], *, perturbed: int) -> list[Comparison]:
    """Quantiles of the requests that were fitted, and of those that were not."""
    found = []
    for run in runs:
        profile = fit_run(run)
        ours = perturbed_mean(partial(_figures, run, profile), cost_of(profile), runs=perturbed)
        theirs = _by_group({"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s})
        for key, value in theirs.items():
            group, _, metric = key.partition(":")
            found.append(Comparison("real_vllm", run.name, metric, value, ours[key], group=group))
    return found


def _figures(run: Run, profile: HardwareProfile, cost: Floats) -> dict[str, float]:
    played = play_iterations(with_cost(profile, cost), run.trace)
    steps = np.maximum(run.trace.output_tokens - 1, 1)
    tpot_s = (played.e2e_s - played.ttft_s) / steps
    return _by_group({"ttft": played.ttft_s, "tpot": tpot_s, "e2e": played.e2e_s})


def _by_group(times: dict[str, Floats]) -> dict[str, float]:
    found = {}
    for group, rows in (("fitted", slice(FITTED_REQUESTS)), ("predicted", slice(FITTED_REQUESTS, None))):
        part = quantiles({name: values[rows] for name, values in times.items()})
        found.update({f"{group}:{metric}": value for metric, value in part.items()})
    return found


def _run(name: str, rows: list[dict[str, str]]) -> Run:
    rows = sorted(rows, key=lambda row: float(row["arrival_s"]))
    requests = [
        Request(
            request_id=str(number),
            arrival_s=float(row["arrival_s"]),
            input_tokens=int(row["input_toks"]),
            output_tokens=int(row["output_toks"]),
        )
        for number, row in enumerate(rows)
    ]
    ttft_s, tpot_s, e2e_s = (
        np.array([float(row[key]) for row in rows]) for key in ("ttft_s", "tpot_s", "e2e_s")
    )
    return Run(name, Trace.from_requests(name, requests), ttft_s, tpot_s, e2e_s)
