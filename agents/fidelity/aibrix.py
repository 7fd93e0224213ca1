"""A real cluster under several routing set-ups: does the model rank them as reality does?

Eight replicas of an 8B model answered users who each came with 21 thousand tokens of history. Set-ups
differ in routing (`aibrix_routers.py`) and in where old KV blocks go (nowhere, to host memory, to a
store outside). What a set-up costs is taken from its quiet runs, below one request a second; the
ranking at 1.3 to 2.5 requests a second is predicted:

- a full prompt and a decode step, from `naive`: the A100 profile, scaled;
- per set-up, what a request costs whose history is in GPU memory (its quickest);
- for offloaded histories, how long loading one takes (the 95th percentile, where nobody computes any).

The engines are as the published deployment started them: whole prompts before decodes
(`--no-enable-chunked-prefill`), prompts of at most 32 000 tokens, on nodes with 80 GB A100 or 96 GB H20.
Whole prompts take 1.6 times the kernels of an A100 and 95 % of the peak of an H20, and more stays in GPU
memory than an A100 holds (nearly all 188 histories at 1.7 a second): so the KV cache is that of an H20.

The runs of a set-up are replayed one after another on replicas whose caches stay warm: at rising rates,
since in the quiet runs new users wait for a whole prompt and old ones do not. Where histories are
offloaded it must have been the other way round: in the quiet runs even new users are answered as if
their history were in GPU memory, which cannot hold all; it can, where the busier runs came before, with
the same users and more. All users have been there before, since nobody waits for a whole prompt.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fidelity.aibrix_routers import make_router
from steersman.agents.fidelity.comparison import Comparison, perturbed_mean
from steersman.env.cluster import Cluster
from steersman.env.iterations import cost_of, with_cost
from steersman.env.profiles import load_profile
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Batching, HardwareProfile, Request
from steersman.traces.trace import Trace

Floats = NDArray[np.float64]

REPLICAS = 8
QUIET_RPS = 1.0
COMPARED_RPS = (1.3, 1.7, 2.1, 2.5)
TIE = 0.1
"""Two set-ups that differ by less are not ranked."""
BLOCK_TOKENS = 512
QUESTION_TOKENS = 73
"""New in a request; the rest of the prompt is history."""
LONGEST_TOKENS = 32_000
"""`--max-model-len`; without chunked prefill also the token budget of an iteration."""
KV_CAPACITY_TOKENS = 555_000
"""Of an H20: 90 % of 95.6 GiB, less 15 GiB of weights and 3.3 GiB for the activations of 32 000
tokens."""
_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How one set-up routes, and where old histories go."""

    routing: str
    offloaded: bool = False


SETUPS = {
    "naive": Setup("connections"),
    "aibrix_naive": Setup("least-of-two"),
    "aibrix_naive_prefix_routing": Setup("prefix"),
    "aibrix_kvcache_dram": Setup("prefix", offloaded=True),
    "aibrix_kvcache_external": Setup("prefix", offloaded=True),
    "ps_stack": Setup("session", offloaded=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One set-up at one rate; n requests in order of sending."""

    setup: str
    rate_rps: float
    at_s: Floats
    user: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    ttft_s: Floats
    decode_s: Floats


@dataclass(frozen=True, slots=True)
class Costs:
    """What quiet runs say of a set-up."""

    hit_s: float
    """TTFT of a request whose history is in GPU memory."""
    miss_s: float
    """TTFT of a request whose history is not: computed, or loaded."""
    step_s: float
    """Per output token."""


def load_runs(path: Path) -> list[Run]:
    """The runs of a gzipped CSV: setup, qps, t_s, user_id, ..., as published."""
    rows: dict[tuple[str, float], list[list[float]]] = {}
    columns = ("t_s", "user_id", "prompt_tokens", "generation_tokens", "ttft", "generation_time")
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            found = rows.setdefault((row["setup"], float(row["qps"])), [])
            found.append([float(row[key]) for key in columns])
    runs = []
    for (setup, rate), members in sorted(rows.items()):
        table = np.array(sorted(members)).T
        at_s, _, _, _, ttft_s, decode_s = table
        user, prompt, output = table[1:4].astype(np.int64)
        runs.append(Run(setup, rate, at_s, user, prompt, np.maximum(output, 1), ttft_s, decode_s))
    return runs


def compare(runs: list[Run], *, perturbed: int) -> list[Comparison]:
    """Median TTFT of every set-up at every compared rate."""
    found = []
    for name, setup in SETUPS.items():
        members = [run for run in runs if run.setup == name]
        costs = quiet_costs(members, setup, naive=[run for run in runs if run.setup == "naive"])
        profile = scaled_profile(costs, int(np.median(members[0].prompt)))
        if setup.routing == "session":  # All histories are loaded, in `hit_s`.
            profile = replace(profile, prefill_token_s=1e-9, prefill_token2_s=0.0)
        play = partial(_medians, profile, setup, members, costs, itertools.count())
        ours = perturbed_mean(play, cost_of(profile), runs=perturbed)
        for run in members:
            if run.rate_rps in COMPARED_RPS:
                label = f"{name} {run.rate_rps}/s"
                theirs = float(np.median(run.ttft_s))
                found.append(Comparison("aibrix", label, "ttft_p50", theirs, ours[str(run.rate_rps)]))
    return found


def concordant_share(comparisons: list[Comparison]) -> tuple[float, int, list[str]]:
    """Share of pairs of set-ups at one rate that are ranked alike, how many pairs, and the others."""
    alike, pairs, wrong = 0, 0, []
    for one, other in itertools.combinations(comparisons, 2):
        (name, rate), (other_name, other_rate) = one.run.split(), other.run.split()
        if rate != other_rate or abs(one.theirs - other.theirs) < TIE * max(one.theirs, other.theirs):
            continue
        pairs += 1
        if (one.theirs < other.theirs) == (one.ours < other.ours):
            alike += 1
        else:
            wrong.append(f"{name} and {other_name} at {rate}")
    return alike / max(pairs, 1), pairs, wrong


def quiet_costs(members: list[Run], setup: Setup, naive: list[Run]) -> Costs:
    """From the runs below one request a second."""
    own = np.concatenate([run.ttft_s for run in members if run.rate_rps < QUIET_RPS])
    base = np.concatenate([run.ttft_s for run in naive if run.rate_rps < QUIET_RPS])
    steps = np.concatenate([run.decode_s / run.output for run in members if run.rate_rps < QUIET_RPS])
    if setup.offloaded:
        busiest = max((run for run in members if run.rate_rps < QUIET_RPS), key=lambda run: run.rate_rps)
        miss_s = float(np.quantile(busiest.ttft_s, 0.95))
    else:
        miss_s = float(np.median(base))
    return Costs(float(own.min()), miss_s, float(np.median(steps)))


def scaled_profile(costs: Costs, prompt: int) -> HardwareProfile:
    """The A100 profile with prompts and decodes as quick as measured."""
    profile = load_profile("a100-llama-3.1-8b")
    context = profile.decode_context_s * prompt
    step_s = profile.host_overhead_s + profile.decode_base_s + profile.decode_seq_s + context
    faster = costs.step_s / step_s
    whole_s = profile.prefill_token_s * prompt + profile.prefill_token2_s * prompt**2
    slower = max(costs.miss_s - costs.hit_s, 1e-3) / whole_s
    return replace(
        profile,
        host_overhead_s=profile.host_overhead_s * faster,
        decode_base_s=profile.decode_base_s * faster,
        decode_seq_s=profile.decode_seq_s * faster,
        decode_context_s=profile.decode_context_s * faster,
        prefill_base_s=0.0,
        prefill_token_s=profile.prefill_token_s * slower,
        prefill_token2_s=profile.prefill_token2_s * slower,
        batching=Batching.PREFILL_FIRST,
        max_batched_tokens=LONGEST_TOKENS,
        kv_capacity_tokens=KV_CAPACITY_TOKENS,
    )


def _medians(
    profile: HardwareProfile,
    setup: Setup,
    members: list[Run],
    costs: Costs,
    seeds: Iterator[int],
    cost: Floats,
) -> dict[str, float]:
    """Median TTFT of each run, by its rate."""
    profile = with_cost(profile, cost)
    if setup.offloaded:
        members = members[::-1]
    trace, starts = _trace(members, warm=setup.offloaded)
    cluster = Cluster([ReplicaSpec(f"replica-{i}", profile) for i in range(REPLICAS)], trace)
    choose = make_router(setup.routing, np.random.default_rng(next(seeds)))
    while cluster.next_request() is not None:
        cluster.dispatch(choose(cluster))
    cluster.finish(drain_s=1e9)
    # An iteration or two are part of the measured hit already.
    extra_s = costs.hit_s - profile.host_overhead_s - profile.decode_base_s
    ttft_s = cluster.outcomes().ttft_s + max(extra_s, 0.0)
    return {
        str(run.rate_rps): float(np.median(ttft_s[start : start + len(run.at_s)]))
        for run, start in zip(members, starts, strict=True)
    }


def _trace(members: list[Run], *, warm: bool) -> tuple[Trace, list[int]]:
    """The runs in a row; where each begins. `warm`: everybody has been there once before."""
    requests: list[Request] = []
    at_s = 0.0
    users = sorted({int(user) for run in members for user in run.user})
    prompt = int(np.median(members[0].prompt))
    if warm:
        for user in users:
            requests.append(_request(len(requests), at_s, user, prompt, 1))
            at_s += 2.0
    starts = []
    for run in members:
        at_s += _PAUSE_S
        starts.append(len(requests))
        for i in range(len(run.at_s)):
            user, tokens, output = int(run.user[i]), int(run.prompt[i]), int(run.output[i])
            requests.append(_request(len(requests), at_s + float(run.at_s[i]), user, tokens, output))
        at_s += float(run.at_s[-1])
    return Trace.from_requests("aibrix", requests), starts


def _request(number: int, at_s: float, user: int, prompt: int, output: int) -> Request:
    blocks = (prompt - QUESTION_TOKENS) // BLOCK_TOKENS
    return Request(
        request_id=str(number),
        arrival_s=at_s,
        input_tokens=prompt,
        output_tokens=output,
        block_hashes=tuple(user * 1000 + k + 1 for k in range(blocks)),
        block_tokens=BLOCK_TOKENS,
        tenant=str(user),
    )
