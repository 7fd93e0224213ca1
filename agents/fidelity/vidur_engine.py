"""Vidur's runs, played by the engine of the cluster model instead of Vidur's own rules.

`vidur.py` replays Vidur with Vidur's rules. Here the engine that policies learn in plays the same
requests by its own: vLLM v1's chunks for Sarathi, prefill-first batches for vLLM v0, pipeline stages.
What an iteration costs is what was fitted to Vidur there, as far as a profile can say it; nothing is
fitted again. What differs, and stays different:

- no padding: prompts join while their sum stays within 4096 tokens, not their number times the longest,
- no rounding of tokens and contexts, and no tenth more for attention over several sequences (here the
  decodes have it, since there are nearly always several),
- decoding tokens of an iteration with chunks are not part of the GPU's tiles,
- a request that waits for a stage may join a later batch, whichever is planned next.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fidelity.comparison import Comparison, perturbed_mean, quantiles
from steersman.agents.fidelity.vidur import FITTED, SATURATED, Run, fit_models
from steersman.env.cluster import Cluster
from steersman.env.vidur_batches import FEATURES, TILE_TOKENS
from steersman.predictors import ledger as L
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Batching, HardwareProfile, ModelProfile, Request
from steersman.traces.trace import Trace

Floats = NDArray[np.float64]

REPLICAS = 4
BATCH_CAP = 128
PROMPT_TOKENS = 4096
CHUNK_TOKENS = 512
SEVERAL = 1.1
"""Vidur's factor for attention over more than one sequence."""
_ROOMY_TOKENS = 10_000_000


def compare(runs: list[Run], *, perturbed: int) -> list[Comparison]:
    """Quantiles of TTFT and end-to-end time of every run; none of them is fitted by this engine."""
    fits = fit_models(runs)
    found = []
    for run in runs:
        theirs = quantiles({"ttft": run.ttft_s, "e2e": run.e2e_s})
        ours = perturbed_mean(partial(_figures, run), fits[run.model].cost, runs=perturbed)
        group = "saturated" if SATURATED in run.name else "predicted"
        group = "costs from it" if run.name in FITTED else group
        found += [
            Comparison("vidur_engine", run.name, metric, theirs[metric], ours[metric], group=group)
            for metric in theirs
        ]
    return found


def profile_of(run: Run, cost: Floats) -> HardwareProfile:
    """A cost of one stage in Vidur's features, as a profile of all stages together."""
    stages = 2 if run.model.endswith("pp2") else 1
    of = dict(zip(FEATURES, (stages * cost).tolist(), strict=True))
    tile_s = TILE_TOKENS * (of["tokens_over_tile"] + of["tiled_tokens_over_tile"])
    chunked = "_sarathi_" in run.name
    return HardwareProfile(
        name=run.model,
        gpu="a100",
        model=ModelProfile(
            name=run.model,
            parameters_b=8.0,
            weights_gib=1.0,
            kv_bytes_per_token=1,
            context_window_tokens=_ROOMY_TOKENS,
        ),
        tensor_parallel=1,
        gpu_memory_gib=1000.0,
        pipeline_parallel=stages,
        decode_base_s=of["batch"],
        decode_seq_s=of["tokens"],
        decode_context_s=SEVERAL * of["decode_context"],
        # On average a chunk is rounded up by half a tile.
        prefill_base_s=of["batch"] - tile_s + TILE_TOKENS / 2 * of["tiled_tokens_over_tile"],
        prefill_token_s=of["tokens"] + of["tokens_over_tile"] + of["tiled_tokens_over_tile"],
        prefill_token2_s=of["prefill_squared"],
        host_overhead_s=0.0,
        kv_capacity_tokens=_ROOMY_TOKENS,
        max_num_seqs=BATCH_CAP,
        max_batched_tokens=CHUNK_TOKENS if chunked else PROMPT_TOKENS,
        batching=Batching.CHUNKED if chunked else Batching.PREFILL_FIRST,
    )


def _figures(run: Run, cost: Floats) -> dict[str, float]:
    profile = profile_of(run, cost)
    requests = [
        Request(
            request_id=str(row),
            arrival_s=float(run.arrival_s[row]),
            input_tokens=int(run.prompt[row]),
            output_tokens=int(run.output[row]),
        )
        for row in range(len(run.arrival_s))
    ]
    cluster = Cluster(
        [ReplicaSpec(f"replica-{i}", profile) for i in range(REPLICAS)],
        Trace.from_requests(run.name, requests),
        prefix_cache=False,
    )
    while (row := cluster.next_request()) is not None:
        cluster.dispatch(_route(run, cluster, row))
    cluster.finish(drain_s=1e9)
    outcomes = cluster.outcomes()
    return quantiles({"ttft": outcomes.ttft_s, "e2e": outcomes.e2e_s})


def _route(run: Run, cluster: Cluster, row: int) -> int:
    """As Vidur does; ties go to the first."""
    if run.name.endswith("round_robin"):
        return row % REPLICAS
    if run.name.endswith("lorfixed"):
        return int(cluster.state[:, L.INFLIGHT].argmin())
    return int(cluster.memory.replicas["waiting"].argmin())
