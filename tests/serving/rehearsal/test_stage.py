"""What a rehearsal sends before it measures."""

from __future__ import annotations

import numpy as np

from steersman.serving.rehearsal.stage import WARM_UP_REQUESTS, WARM_UP_TOKENS, warm_up
from steersman.traces.readers import load_trace


def test_warming_up_is_short_and_leaves_the_tenants_history_alone() -> None:
    trace = load_trace("azure-chat", limit=100)
    first = warm_up(trace)
    assert len(first) == WARM_UP_REQUESTS
    assert first.output_tokens.max() <= WARM_UP_TOKENS < trace.output_tokens[:WARM_UP_REQUESTS].max()
    assert np.array_equal(first.input_tokens, trace.input_tokens[:WARM_UP_REQUESTS])
    tenants = {request.tenant for request in first.requests()}
    assert tenants.isdisjoint(request.tenant for request in trace.requests())
    assert len(warm_up(trace.select(range(3)))) == 3
