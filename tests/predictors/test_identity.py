from __future__ import annotations

import subprocess
import sys

import numpy as np

from steersman.predictors.identity import identity, identity_key, trace_identities
from steersman.traces.schema import Request
from steersman.traces.trace import Trace


def test_keys_are_the_same_in_every_process() -> None:
    code = "from steersman.predictors.identity import identity_key; print(identity_key('acme'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) == identity_key("acme")
    assert 0 < identity_key("acme") < 2**63


def test_none_is_zero_and_names_differ() -> None:
    assert identity_key(None) == identity_key("") == 0
    assert len({identity_key(f"s{i}") for i in range(1000)}) == 1000
    assert identity_key("\ud800") > 0


def test_a_trace_has_the_keys_of_its_requests() -> None:
    requests = [
        Request("a", 0.0, 1, tenant="x", session_id="s"),
        Request("b", 1.0, 1),
        Request("c", 2.0, 1, tenant="y"),
    ]
    trace = Trace.from_requests("t", requests)
    expected = np.stack([identity(r.tenant, r.session_id) for r in requests])
    np.testing.assert_array_equal(trace_identities(trace), expected)
