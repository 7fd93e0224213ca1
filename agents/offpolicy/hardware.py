"""The hardware profile that a router was configured with, from what it logged of a replica."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steersman.env.profiles import load_profile, profile_names
from steersman.predictors import ledger as L
from steersman.traces.schema import HardwareProfile, ModelProfile

Float64 = NDArray[np.float64]

_LIMITS = (L.MAX_NUM_SEQS, L.MAX_BATCHED_TOKENS, L.KV_CAPACITY_TOKENS)
_TOLD = [column for column in range(L.BASE_WEIGHT + 1) if column not in _LIMITS]
"""Columns of a row that tell a profile; engines have limits of their own, and tell their memory."""
UNKNOWN_CONTEXT_TOKENS = 1 << 20
UNKNOWN_KV_BYTES = 1 << 17


@cache
def _shipped() -> tuple[tuple[HardwareProfile, Float64], ...]:
    profiles = [load_profile(name) for name in profile_names()]
    return tuple((profile, L.new_row(profile)[_TOLD]) for profile in profiles)


def profile_of_row(row: Float64, model: str) -> HardwareProfile:
    """The shipped profile that a replica's row was made from, with the limits the row tells.

    Where none is, one with the row's numbers: its memory and its window of context are not in the row,
    and bound nothing then.

    Args:
        row: (STATE_WIDTH,), see `predictors/ledger.py`.
        model: its name, where no shipped profile tells it.
    """
    seqs, tokens, memory = (int(row[column]) for column in _LIMITS)
    for profile, told in _shipped():
        if np.allclose(told, row[_TOLD], rtol=1e-9, atol=0.0):
            return replace(
                profile, max_num_seqs=seqs, max_batched_tokens=tokens, kv_capacity_tokens=memory
            )
    return HardwareProfile(
        name="logged",
        gpu="unknown",
        model=ModelProfile(
            name=model,
            parameters_b=7.0,
            weights_gib=float(row[L.WEIGHTS_GIB]),
            kv_bytes_per_token=UNKNOWN_KV_BYTES,
            context_window_tokens=UNKNOWN_CONTEXT_TOKENS,
        ),
        tensor_parallel=1,
        gpu_memory_gib=float(row[L.GPU_MEMORY_GIB]),
        decode_base_s=float(row[L.DECODE_BASE_S]),
        decode_seq_s=float(row[L.DECODE_SEQ_S]),
        decode_context_s=float(row[L.DECODE_CONTEXT_S]),
        prefill_base_s=float(row[L.PREFILL_BASE_S]),
        prefill_token_s=float(row[L.PREFILL_TOKEN_S]),
        prefill_token2_s=float(row[L.PREFILL_TOKEN2_S]),
        host_overhead_s=float(row[L.HOST_OVERHEAD_S]),
        kv_capacity_tokens=memory,
        max_num_seqs=seqs,
        max_batched_tokens=tokens,
        hardware_factor=float(row[L.BASE_WEIGHT]),
    )
