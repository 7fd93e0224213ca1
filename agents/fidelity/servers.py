"""What a server adds to the kernels: fitted to measured vLLM servers of a 32B model in BF16 on H100.

Kernel tables say how long a GPU computes. A server also schedules, samples and streams, and its GPUs run
slower under sustained prefill than in a kernel benchmark. Three numbers, the same for all profiles:

- host overhead of an iteration (`host_overhead_s`),
- the same for each decoding sequence, part of `decode_seq_s`,
- by how much prefilling takes longer than its kernels (all of `prefill_*_s`).

They are fitted to closed loops of 8 to 128 clients on two and four H100, measured with vLLM 0.12. The
model is Qwen3-32B, the profile that of Qwen2.5-32B: as many parameters, layers and KV bytes. What is
fitted is the mean end-to-end time, which does not depend on how prefill and decode share an iteration.
Points where requests wait for KV memory are left out: there memory decides, not the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fidelity.comparison import Comparison
from steersman.agents.fidelity.curves import Point, closed_loop, play_loop, read_points
from steersman.env.profiles import load_profile
from steersman.traces.schema import HardwareProfile

Floats = NDArray[np.float64]

PROFILES = {
    ("Qwen/Qwen3-32B", "h100_sxm", "2"): "h100-tp2-qwen2.5-32b",
    ("Qwen/Qwen3-32B", "h100_sxm", "4"): "h100-tp4-qwen2.5-32b",
}
MAX_BATCHED_TOKENS = 8192
"""vLLM's default for its server on these GPUs."""
LONGEST_TTFT_S = 1.6
"""Beyond, requests waited for KV memory."""
ROUNDS = 6
_STEPS = np.array([1e-3, 3e-5, 0.1])
"""Of the numeric derivatives."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server adds to the kernels."""

    host_s: float
    """Per iteration."""
    host_seq_s: float
    """Per decoding sequence."""
    prefill_factor: float

    @classmethod
    def of(cls, values: Floats) -> Server:
        """From an array of the three, in this order."""
        return cls(*(float(value) for value in values))

    def on(self, kernels: HardwareProfile) -> HardwareProfile:
        """A profile of kernel times, served."""
        return replace(
            kernels,
            host_overhead_s=self.host_s,
            decode_seq_s=kernels.decode_seq_s + self.host_seq_s,
            prefill_base_s=kernels.prefill_base_s * self.prefill_factor,
            prefill_token_s=kernels.prefill_token_s * self.prefill_factor,
            prefill_token2_s=kernels.prefill_token2_s * self.prefill_factor,
        )

    def off(self, served: HardwareProfile) -> HardwareProfile:
        """The kernel times of a profile that `on` made."""
        return replace(
            served,
            host_overhead_s=0.0,
            decode_seq_s=served.decode_seq_s - self.host_seq_s,
            prefill_base_s=served.prefill_base_s / self.prefill_factor,
            prefill_token_s=served.prefill_token_s / self.prefill_factor,
            prefill_token2_s=served.prefill_token2_s / self.prefill_factor,
        )


BUNDLED = Server(host_s=0.00125, host_seq_s=3.9e-5, prefill_factor=1.16)
"""What `fit` finds, rounded; all bundled profiles have it (`benchmarks/profiles.py` writes them)."""


def load_points(path: Path) -> list[Point]:
    """The measurements that the fit uses."""
    return [point for point in read_points(path, PROFILES) if point.ttft_s <= LONGEST_TTFT_S]


def fit(points: Sequence[Point], *, rounds: int = 4) -> Server:
    """By Gauss-Newton on relative errors of the end-to-end time; large ones weigh less (Huber).

    Args:
        points: measurements.
        rounds: of playing all points four times.
    """
    values = np.array([0.0, 0.0, 1.0])
    for _ in range(rounds):
        errors = end_to_end_errors(points, Server.of(values))
        slopes = np.array(
            [
                (end_to_end_errors(points, Server.of(values + step)) - errors) / step.sum()
                for step in np.diag(_STEPS)
            ]
        ).T
        spread = max(1.4826 * float(np.median(np.abs(errors))), 1e-4)
        root = np.sqrt(np.minimum(1.0, 1.5 * spread / np.maximum(np.abs(errors), 1e-9)))
        scaled = slopes * _STEPS * root[:, None]
        change = np.linalg.lstsq(scaled, -errors * root, rcond=None)[0]
        values = np.maximum(values + change * _STEPS, [0.0, 0.0, 0.5])
    return Server.of(values)


def end_to_end_errors(points: Sequence[Point], server: Server = BUNDLED) -> Floats:
    """(ours − theirs) / theirs of the mean end-to-end time of every point."""
    ours = np.array([_end_to_end_s(point, *play(point, server)) for point in points])
    theirs = np.array([_end_to_end_s(point, point.ttft_s, point.tpot_s) for point in points])
    errors: Floats = ours / theirs - 1.0
    return errors


def compare(points: Sequence[Point]) -> list[Comparison]:
    """End-to-end time and TPOT of every point by the bundled profiles, without any factor."""
    found = []
    for point in points:
        run = f"{point.profile} {point.input_tokens}/{point.output_tokens} x{point.concurrency}"
        ttft_s, tpot_s = play(point, BUNDLED)
        for metric, theirs, ours in (
            ("tpot_mean", point.tpot_s, tpot_s),
            (
                "e2e_mean",
                _end_to_end_s(point, point.ttft_s, point.tpot_s),
                _end_to_end_s(point, ttft_s, tpot_s),
            ),
        ):
            found.append(Comparison("server_32b", run, metric, theirs, ours, group="fitted"))
    return found


def play(point: Point, server: Server) -> tuple[float, float]:
    """Mean TTFT and TPOT of a closed loop, in seconds."""
    kernels = BUNDLED.off(load_profile(point.profile))
    profile = replace(server.on(kernels), max_batched_tokens=MAX_BATCHED_TOKENS, max_num_seqs=1024)
    means = play_loop(profile, closed_loop(point, ROUNDS, shortest=1.0))
    return means["ttft"], means["tpot"]


def _end_to_end_s(point: Point, ttft_s: float, tpot_s: float) -> float:
    return ttft_s + (point.output_tokens - 1) * tpot_s
