"""A measured table of a 70B model on A100 and H100: batches of one kind, prompts and then decodes.

Our profiles are of Llama-3.1-70B, which has the same layers, heads and sizes, under a later vLLM. The
table is of an older and slower server; so the shape is compared after one factor for prompts and one for
decodes per GPU and tensor parallelism. Batches of 64 prompts are left out: their times in the table are
lower than those of 32, as if most of the batch had been refused.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fidelity.comparison import Comparison
from steersman.env.profiles import load_profile
from steersman.traces.schema import HardwareProfile

Floats = NDArray[np.float64]

LARGEST_BATCH = 32
_GPUS = {"a100-80gb": "a100", "h100-80gb": "h100"}


def load_table(path: Path) -> dict[str, Floats]:
    """By profile: rows of prompt tokens, batch, output tokens, prompt time and time per token (ms)."""
    columns = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time")
    found: dict[str, list[list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            degree = int(row["tensor_parallel"])
            if degree >= 4 and int(row["batch_size"]) <= LARGEST_BATCH:  # fewer GPUs hold no BF16 model
                name = f"{_GPUS[row['hardware']]}-tp{degree}-llama-3.1-70b"
                found.setdefault(name, []).append([float(row[key]) for key in columns])
    return {name: np.array(rows) for name, rows in found.items()}


def compare(table: dict[str, Floats]) -> list[Comparison]:
    """Prompt time and time per token of every batch."""
    found = []
    for name, rows in table.items():
        profile = load_profile(name)
        for metric, theirs, ours in (
            ("prompt", rows[:, 3] / 1000.0, prompt_s(profile, rows[:, 0], rows[:, 1])),
            ("token", rows[:, 4] / 1000.0, token_s(profile, rows[:, 0], rows[:, 1], rows[:, 2])),
        ):
            scaled = ours * np.exp(np.median(np.log(theirs / ours)))
            for row, wanted, got in zip(rows, theirs, scaled, strict=True):
                run = f"{name} {row[0]:.0f}/{row[2]:.0f} x{row[1]:.0f}"
                found.append(Comparison("llama2_70b", run, metric, float(wanted), float(got)))
    return found


def prompt_s(profile: HardwareProfile, prompt: Floats, batch: Floats) -> Floats:
    """One iteration of `batch` whole prompts."""
    prefill_s = (
        profile.prefill_base_s
        + profile.prefill_token_s * batch * prompt
        + profile.prefill_token2_s * batch * prompt**2
    )
    time_s: Floats = profile.host_overhead_s + np.maximum(profile.decode_base_s, prefill_s)
    return time_s


def token_s(profile: HardwareProfile, prompt: Floats, batch: Floats, output: Floats) -> Floats:
    """Mean iteration while `batch` sequences decode `output` tokens."""
    context = batch * (prompt + output / 2)
    time_s: Floats = (
        profile.host_overhead_s
        + profile.decode_base_s
        + profile.decode_seq_s * batch
        + profile.decode_context_s * context
    )
    return time_s
