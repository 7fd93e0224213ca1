"""What a client measures on an emulated backend is what the cluster model says, within a loaded
machine's scatter: the bounds are wide enough for that and far too narrow for another model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile
from steersman.predictors import analytic
from steersman.predictors import ledger as L
from steersman.serving.replay import ReplaySettings, replay
from steersman.serving.replay_result import ReplayResult
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Request, Status
from steersman.traces.trace import Trace
from tests.e2e.conftest import PROFILES, Backends

INDEX = 1
PROFILE = load_profile(PROFILES[INDEX])


def trace(arrivals_s: list[float], input_tokens: list[int], output_tokens: list[int]) -> Trace:
    base = Request("", 0.0, 1)
    return Trace.from_requests(
        "timing",
        [
            replace(base, request_id=f"t{i}", arrival_s=at, input_tokens=tokens, output_tokens=output)
            for i, (at, tokens, output) in enumerate(
                zip(arrivals_s, input_tokens, output_tokens, strict=True)
            )
        ],
    )


async def measured(backends: Backends, requests: Trace) -> ReplayResult:
    result = await replay(requests, ReplaySettings(url=backends.urls[INDEX]))
    assert set(result.status) == {Status.OK}
    assert result.output_tokens.tolist() == requests.output_tokens.tolist()
    return result


@pytest.mark.parametrize("prompt", [200, 2000, 8000])
async def test_a_request_alone_takes_what_the_profile_says(backends: Backends, prompt: int) -> None:
    # A busy machine makes answers late, never early: the best of three is the emulator's own.
    results = [await measured(backends, trace([0.0], [prompt], [25])) for _ in range(3)]
    pool = L.new_row(PROFILE)[None]
    ttft_s = float(analytic.unloaded_ttft_s(pool, np.full(1, float(prompt)))[0])
    assert min(result.ttft_s[0] for result in results) == pytest.approx(ttft_s, abs=0.3 * ttft_s + 0.03)
    step_s = (
        PROFILE.host_overhead_s
        + PROFILE.decode_base_s
        + PROFILE.decode_seq_s
        + PROFILE.decode_context_s * (prompt + 12)
    )
    assert min(result.tpot_s[0] for result in results) == pytest.approx(step_s, abs=0.2 * step_s + 0.001)


async def test_a_load_takes_what_the_cluster_model_says(backends: Backends) -> None:
    rng = np.random.default_rng(11)
    count = 40
    requests = trace(
        np.cumsum(rng.exponential(1 / 8.0, count)).tolist(),
        rng.integers(200, 3000, count).tolist(),
        rng.integers(20, 80, count).tolist(),
    )
    result = await measured(backends, requests)
    cluster = Cluster([ReplicaSpec("one", PROFILE)], requests)
    while cluster.next_request() is not None:
        cluster.dispatch(0)
    cluster.finish()
    model = cluster.outcomes()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        seen = float(np.median(getattr(result, name)))
        said = float(np.median(getattr(model, name)))
        assert seen == pytest.approx(said, abs=0.25 * said + 0.02), name
