"""Plausible observations drawn at random: for the policy checker, self-tests and benchmarks.

They come from random ledger rows through `env/observation.py`, so that every feature is consistent
with the others, as in a router.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.observation import observe
from steersman.predictors import ledger as L
from steersman.predictors.features import LENGTH_FEATURES, request_features
from steersman.predictors.identity import identity
from steersman.predictors.objectives import slo_s
from steersman.traces.schema import HardwareProfile, ModelProfile, Observation

_MODEL = ModelProfile("sample-8b", 8.0, 15.0, 131072, 131072)


def sample_observation(
    rng: np.random.Generator, replicas: int, *, allowed: int | None = None
) -> Observation:
    """One decision's observation over a random mixed pool, from idle to overloaded.

    Args:
        allowed: number of healthy replicas; at random, but at least one, if None.
    """
    return observe(*sample_inputs(rng, replicas, allowed=allowed))


def sample_inputs(
    rng: np.random.Generator, replicas: int, *, allowed: int | None = None
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.float64],
    None,
    NDArray[np.int64],
]:
    """What `sample_observation` is made of: the arguments of `observe`."""
    load = rng.uniform(0.0, 1.5)
    state = np.stack([_row(rng, load) for _ in range(replicas)])
    if allowed is None:
        allowed = int(rng.integers(1, replicas + 1))
    state[rng.permutation(replicas)[allowed:], L.HEALTHY] = 0.0
    prompt = float(rng.integers(1, 8000))
    length = np.zeros(len(LENGTH_FEATURES), dtype=np.float32)
    length[LENGTH_FEATURES.index("input_tokens")] = prompt
    length[LENGTH_FEATURES.index("stream")] = 1.0
    length[LENGTH_FEATURES.index("turns")] = 1.0
    output = float(rng.integers(1, 1000))
    request = request_features(length, output, 2.0 * output, *slo_s(state, prompt))
    match = np.where(rng.random(replicas) < 0.3, prompt * rng.random(replicas), 0.0)
    asker = identity(f"tenant-{rng.integers(4)}", f"session-{rng.integers(20)}")
    return state, request, match, np.array(100.0), None, asker


def _row(rng: np.random.Generator, load: float) -> NDArray[np.float64]:
    speed = rng.uniform(0.4, 1.2)
    profile = HardwareProfile(
        name="sample",
        gpu="sample",
        model=_MODEL,
        tensor_parallel=1,
        gpu_memory_gib=80.0,
        decode_base_s=0.008 / speed,
        decode_seq_s=5e-5 / speed,
        decode_context_s=6e-8 / speed,
        prefill_base_s=0.009 / speed,
        prefill_token_s=6e-5 / speed,
        prefill_token2_s=1e-9 / speed,
        host_overhead_s=0.002,
        kv_capacity_tokens=400_000,
        hardware_factor=speed,
    )
    row = L.new_row(profile)
    for _ in range(rng.poisson(60.0 * load)):
        prompt, output = float(rng.integers(1, 4000)), float(rng.integers(1, 600))
        L.on_dispatch(row, prompt, prompt, output)
        if rng.random() < 0.9:
            L.on_first_token(row, prompt, float(rng.uniform(0.05, 2.0)), 0.3)
    running = min(row[L.INFLIGHT], float(profile.max_num_seqs))
    L.on_scrape(row, 100.0 - rng.uniform(0.0, 0.4), running, row[L.INFLIGHT] - running, 0.5 * load)
    row[L.MEAN_E2E_S] = rng.uniform(1.0, 20.0)
    row[L.MEAN_TPOT_S] = rng.uniform(0.01, 0.1)
    return row
