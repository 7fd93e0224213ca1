"""Measured TTFT and TPOT against concurrency: closed loops, one scale factor per model, GPU and tp.

The servers ran in FP8 and our profiles are BF16, so they are halved where FP8 halves: `as_fp8`. What
that leaves unsaid is left to the scale factor, and only the shape is compared. Set-up and load are
those of the public benchmark the table comes from (InferenceMAX): `concurrency` clients that ask again
as soon as they are answered, ten requests each, prompts and outputs of 80 to 100 % of the nominal
length, FP8 KV cache, 8192 tokens an iteration. The table does not say which average it holds; the mean
fits its growth with concurrency, the median does not.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steersman.agents.fidelity.comparison import Comparison, perturbed_mean
from steersman.env.cluster import Cluster
from steersman.env.iterations import cost_of, with_cost
from steersman.env.profiles import load_profile
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import HardwareProfile, Request
from steersman.traces.trace import Trace

PROFILES = {
    ("meta-llama/Llama-3.1-70B", "h100_sxm", "4"): "h100-tp4-llama-3.1-70b",
    ("meta-llama/Llama-3.1-70B", "h100_sxm", "8"): "h100-tp8-llama-3.1-70b",
    ("meta-llama/Llama-3.1-70B", "h200_sxm", "2"): "h200-tp2-llama-3.1-70b",
    ("meta-llama/Llama-3.1-70B", "h200_sxm", "4"): "h200-tp4-llama-3.1-70b",
    ("meta-llama/Llama-3.1-70B", "h200_sxm", "8"): "h200-tp8-llama-3.1-70b",
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "h200_sxm", "1"): "h200-llama-3.1-8b",
}
"""Those of the table that our profiles cover: in BF16 the 70B model does not fit fewer GPUs."""
MAX_BATCHED_TOKENS = 8192
SHORTEST = 0.8
PEAK_BYTES_PER_S = {"h100-80gb": 3.35e12, "h200-141gb": 4.8e12}
"""Memory bandwidth of a GPU (data sheets of H100 SXM and H200 SXM)."""
PEAK_FLOP_PER_S = {"h100-80gb": 989e12, "h200-141gb": 989e12}
"""Dense BF16 (the same data sheets); FP8 is twice as fast."""
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    profile: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    tpot_s: float


def load_points(path: Path) -> list[Point]:
    """The rows of the table that we have profiles for."""
    return read_points(path, PROFILES)


def read_points(path: Path, profiles: Mapping[tuple[str, str, str], str]) -> list[Point]:
    """The rows of a table whose (model, system, tensor parallelism) is among `profiles`."""
    with path.open(newline="") as file:
        return [
            Point(
                profiles[key],
                int(row["isl"]),
                int(row["osl"]),
                int(row["concurrency"]),
                float(row["ttft_ms"]) / 1000.0,
                float(row["tpot_ms"]) / 1000.0,
            )
            for row in csv.DictReader(file)
            if (key := (row["model_path"], row["system"], row["tp_size"])) in profiles
        ]


def compare(points: list[Point], *, perturbed: int, rounds: int = _ROUNDS) -> list[Comparison]:
    """TTFT and TPOT of every point, ours multiplied by its group's factor."""
    found = []
    for name in dict.fromkeys(point.profile for point in points):
        members = [point for point in points if point.profile == name]
        profile = as_fp8(load_profile(name))
        ours = np.array([_measure(profile, point, perturbed, rounds) for point in members])
        theirs = np.array([(point.ttft_s, point.tpot_s) for point in members])
        scaled = ours * np.exp(np.median(np.log(theirs / ours)))
        for point, wanted, got in zip(members, theirs, scaled, strict=True):
            run = f"{name} {point.input_tokens}/{point.output_tokens} x{point.concurrency}"
            for metric, w, g in zip(("ttft_mean", "tpot_mean"), wanted, got, strict=True):
                found.append(Comparison("measured", run, metric, float(w), float(g)))
    return found


def as_fp8(profile: HardwareProfile) -> HardwareProfile:
    """A BF16 profile, served in FP8 as the table was.

    Of the time of an iteration what it takes to read the weights, or to multiply by them, at the GPU's
    peak is halved; the rest (communication, launches, attention, the host) stays. The KV cache takes
    half the bytes, and weights of half the size leave it more room.
    """
    gpus = profile.tensor_parallel
    weights = profile.model.weights_gib * 1024**3
    read_s = weights / gpus / PEAK_BYTES_PER_S[profile.gpu]
    token_s = 2e9 * profile.model.parameters_b / gpus / PEAK_FLOP_PER_S[profile.gpu]
    kv_bytes = profile.kv_capacity_tokens * profile.model.kv_bytes_per_token + weights / 2
    return replace(
        profile,
        decode_base_s=profile.decode_base_s - read_s / 2,
        decode_context_s=profile.decode_context_s / 2,
        prefill_base_s=profile.prefill_base_s - min(read_s / 2, profile.prefill_base_s / 2),
        prefill_token_s=profile.prefill_token_s - token_s / 2,
        kv_capacity_tokens=int(2 * kv_bytes / profile.model.kv_bytes_per_token),
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_num_seqs=1024,
    )


def _measure(profile: HardwareProfile, point: Point, perturbed: int, rounds: int) -> tuple[float, float]:
    trace = closed_loop(point, rounds)
    means = perturbed_mean(
        lambda cost: play_loop(with_cost(profile, cost), trace), cost_of(profile), runs=perturbed
    )
    return means["ttft"], means["tpot"]


def play_loop(profile: HardwareProfile, trace: Trace) -> dict[str, float]:
    """Mean TTFT and TPOT of one replica, in seconds."""
    cluster = Cluster([ReplicaSpec("replica", profile)], trace)
    while cluster.next_request() is not None:
        cluster.dispatch(0)
    cluster.finish(drain_s=1e9)
    outcomes = cluster.outcomes()
    return {"ttft": float(outcomes.ttft_s.mean()), "tpot": float(outcomes.tpot_s.mean())}


def closed_loop(point: Point, rounds: int, *, shortest: float = SHORTEST) -> Trace:
    """`concurrency` clients, each asking again when answered; lengths are `shortest` to 1 of the
    nominal."""
    rng = np.random.default_rng([point.input_tokens, point.output_tokens, point.concurrency])
    clients = point.concurrency
    requests = []
    for number in range(clients * rounds):
        shares = shortest + (1.0 - shortest) * rng.random(2)
        requests.append(
            Request(
                request_id=str(number),
                # A later turn's own arrival is not used; it only has to come after its parent's.
                arrival_s=1e-6 * (number // clients),
                input_tokens=round(point.input_tokens * shares[0]),
                output_tokens=round(point.output_tokens * shares[1]),
                session_id=str(number % clients),
                parent_id=str(number - clients) if number >= clients else None,
            )
        )
    return Trace.from_requests("closed-loop", requests)
