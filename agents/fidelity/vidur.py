"""Vidur, the best-known simulator of LLM serving: fit it on two of its runs, predict the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from steersman.agents.fidelity.comparison import Comparison, perturbed_mean, quantiles
from steersman.env import vidur
from steersman.env.regression import Fit, Measured, fit_cost

Floats = NDArray[np.float64]

FITTED = ("l8_conv1000_x1_vllm_round_robin", "l70tp2pp2_conv1000_x1_vllm_round_robin")
"""One run of each model; all others are predicted."""
SATURATED = "_x6_"
_FIRST = np.array([0.01, 3e-5, 3e-5, 3e-5, 1e-7, 3e-9])


@dataclass(frozen=True, slots=True)
class Run:
    """One run of Vidur; n requests in order of arrival."""

    name: str
    """model_trace_rate_scheduler_router."""
    arrival_s: Floats
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    ttft_s: Floats
    e2e_s: Floats

    @property
    def model(self) -> str:
        """`l8` is Llama-3-8B on one A100; `l70tp2pp2` Llama-2-70B on two stages of two."""
        return self.name.partition("_")[0]

    def play(self, cost: Floats) -> vidur.Played:
        """The same requests under Vidur's rules and our cost."""
        *_, scheduler, router = self.name.replace("round_robin", "round-robin").split("_")
        return vidur.play(
            self.arrival_s,
            self.prompt,
            self.output,
            cost,
            scheduler=scheduler,
            router=router.replace("-", "_"),
            stages=2 if self.model.endswith("pp2") else 1,
        )


def load_runs(path: Path) -> list[Run]:
    """The runs of a parquet file with the columns of `Run`, one row a request."""
    table = pq.read_table(path)
    names = pc.unique(table["run"]).to_pylist()
    runs = []
    for name in names:
        part = table.filter(pc.equal(table["run"].cast("string"), name))
        column = {key: part[key].to_numpy() for key in part.column_names if key != "run"}
        runs.append(
            Run(
                str(name),
                column["arrival_s"].astype(np.float64),
                column["input_tokens"].astype(np.int64),
                column["output_tokens"].astype(np.int64),
                column["ttft_s"].astype(np.float64),
                column["e2e_s"].astype(np.float64),
            )
        )
    return runs


def fit_models(runs: list[Run]) -> dict[str, Fit]:
    """A cost for each model that has a run to fit on."""
    return {
        run.model: fit_cost(run.play, Measured(run.ttft_s, run.e2e_s), _FIRST)
        for run in runs
        if run.name in FITTED
    }


def compare(runs: list[Run], *, perturbed: int) -> list[Comparison]:
    """Quantiles of TTFT and end-to-end time of every run."""
    fits = fit_models(runs)
    found = []
    for run in runs:
        theirs = quantiles({"ttft": run.ttft_s, "e2e": run.e2e_s})
        ours = perturbed_mean(partial(_figures, run), fits[run.model].cost, runs=perturbed)
        group = "fitted" if run.name in FITTED else "predicted"
        group = "saturated" if SATURATED in run.name else group
        found += [
            Comparison("vidur", run.name, metric, theirs[metric], ours[metric], group=group)
            for metric in theirs
        ]
    return found


def _figures(run: Run, cost: Floats) -> dict[str, float]:
    played = run.play(cost)
    return quantiles({"ttft": played.ttft_s, "e2e": played.e2e_s})
