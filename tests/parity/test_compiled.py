"""Machine code gives what numpy gives: the same formulas, whatever is known of the replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.samples import sample_inputs
from steersman.env.observation import observe
from steersman.predictors import ledger as L
from steersman.predictors.compiled import MachineCode
from steersman.predictors.features import AVERAGED, NUMPY
from steersman.traces.schema import Observation
from tests.support.machine_code import compiled_file

ODD = st.sampled_from([0.0, -1.0, 1e-300, 1e30, 1e300, np.inf, -np.inf, np.nan])
"""Numbers that nothing should be; where they are, the answer is to be the same all the same."""
FEW = 8
"""Replicas that are drawn; of many, the rest are like these."""
SPOILT = st.lists(st.tuples(st.integers(0, 299), st.integers(0, L.STATE_WIDTH - 1), ODD), max_size=12)


@pytest.fixture(scope="module")
def machine_code() -> MachineCode:
    return MachineCode.read(compiled_file())


def compare(plain: Observation, compiled: Observation) -> None:
    np.testing.assert_array_equal(compiled.replicas, plain.replicas)
    means = slice(1, 1 + len(AVERAGED))
    # Summed in double precision, in another order: rounded to single, next to never in the last bit.
    np.testing.assert_array_max_ulp(
        np.nan_to_num(compiled.pool[means]), np.nan_to_num(plain.pool[means]), maxulp=1
    )
    np.testing.assert_array_equal(np.isnan(compiled.pool), np.isnan(plain.pool))
    np.testing.assert_array_equal(np.delete(compiled.pool, means), np.delete(plain.pool, means))
    np.testing.assert_array_equal(compiled.mask, plain.mask)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 20) | st.integers(1, 300),
    ill=st.floats(0.0, 1.0),
    unscraped=st.integers(0, 40),
    spoilt=SPOILT,
    match_factor=st.sampled_from([0.0, 1.0, 50.0]),
)
@settings(max_examples=60, deadline=None)
def test_it_gives_what_numpy_gives(
    machine_code: MachineCode,
    seed: int,
    n: int,
    ill: float,
    unscraped: int,
    spoilt: list[tuple[int, int, float]],
    match_factor: float,
) -> None:
    rng = np.random.default_rng(seed)
    known, request, match, now_s, _, asker = sample_inputs(rng, FEW)
    chosen = rng.integers(0, FEW, n)
    state, match = known[chosen] * rng.uniform(0.5, 2.0, (n, L.STATE_WIDTH)), match[chosen]
    state[:, L.HEALTHY] = rng.random(n) >= ill
    state[: min(unscraped, n), L.SCRAPED_AT_S] = -np.inf
    for row, column, value in spoilt:
        state[row % n, column] = value
    excluded = rng.random(n) < 0.1
    given_ = (state, request, match * match_factor, now_s, excluded, asker)
    with np.errstate(all="ignore"):
        compare(observe(*given_), observe(*given_, formulas=machine_code.formulas))


@given(values=st.lists(st.floats(width=32), min_size=4, max_size=4), which=st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_of_requests_that_are_odd_too(
    machine_code: MachineCode, values: list[float], which: int
) -> None:
    given_ = sample_inputs(np.random.default_rng(which), 7)
    given_[1][-4:] = values
    with np.errstate(all="ignore"):
        compare(observe(*given_), observe(*given_, formulas=machine_code.formulas))


@given(prompt=st.floats(0.0, 1e6), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_an_unloaded_replica_takes_as_long(machine_code: MachineCode, prompt: float, seed: int) -> None:
    state = sample_inputs(np.random.default_rng(seed), FEW)[0]
    asked = state, np.array(prompt)
    np.testing.assert_array_equal(machine_code.unloaded_ttft_s(*asked), NUMPY.unloaded_ttft_s(*asked))


def test_what_it_does_not_take_is_refused(machine_code: MachineCode) -> None:
    state, request, match, now_s, _, _ = sample_inputs(np.random.default_rng(0), 5)
    nobody = np.zeros(5, dtype=np.bool_)
    for wrong in (
        (state[:, :-1], request, match, now_s, nobody),
        (state[None], request[None], match[None], now_s[None], nobody),
        (state.astype(np.float32), request, match, now_s, nobody),
        (np.asfortranarray(state), request, match, now_s, nobody),
        (state, request.astype(np.float64), match, now_s, nobody),
        (state, request, np.zeros(10)[::2], now_s, nobody),
        (state, request, match, now_s, nobody[:-1]),
    ):
        with pytest.raises(TypeError):
            machine_code.features(*wrong)
    wrong_states: list[Any] = [state[0], state[:, :-1], state.astype(np.float32)]
    for wrong_state in (*wrong_states, np.asfortranarray(state)):
        with pytest.raises(TypeError):
            machine_code.unloaded_ttft_s(wrong_state, now_s)
