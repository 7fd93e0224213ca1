"""Variety for simulated runs: mixes of hardware, and traffic that differs from the trace's."""

from __future__ import annotations

import numpy as np

from steersman.env.profiles import load_profile, profile_names, with_limits
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.schema import HardwareProfile
from steersman.traces.trace import Trace

MOST_REPLICAS = 8
STRAGGLERS = 0.15
"""Share of replicas slowed down by up to a factor of two."""
FEWEST_REQUESTS = 200
"""A stretch of a trace with fewer says nothing of traffic."""


def draw_mix(scenario: Scenario, rng: np.random.Generator) -> tuple[ReplicaSpec, ...]:
    """Two to eight replicas: half as in the scenario, half other hardware with the same limits."""
    others = _other_profiles(scenario)
    specs = []
    for i in range(int(rng.integers(2, MOST_REPLICAS + 1))):
        spec = scenario.replicas[int(rng.integers(len(scenario.replicas)))]
        profile = spec.profile
        if others and rng.random() < 0.5:
            profile = with_limits(
                others[int(rng.integers(len(others)))],
                max_num_seqs=profile.max_num_seqs,
                max_batched_tokens=profile.max_batched_tokens,
            )
        slowdown = float(rng.uniform(1.0, 2.0)) if rng.random() < STRAGGLERS else 1.0
        specs.append(ReplicaSpec(f"{profile.gpu}-{i}", profile, slowdown))
    return tuple(specs)


def stretch(trace: Trace, first: float, last: float) -> Trace:
    """What arrived between two shares of the trace's time; all of it, if that is too little."""
    start_s, end_s = trace.arrival_s[0], trace.arrival_s[-1]
    bounds_s = start_s + np.array((first, last)) * (end_s - start_s)
    low, high = np.searchsorted(trace.arrival_s, bounds_s)
    if high - low < FEWEST_REQUESTS or (first, last) == (0.0, 1.0):
        return trace
    return trace.select(np.arange(low, high))


def scaled(trace: Trace, prompt_factor: float, output_factor: float) -> Trace:
    """The trace with longer or shorter answers, and prompts where no prefix blocks fix their length."""
    factors = {"output_tokens": output_factor}
    if not len(trace.block_hashes):
        factors["input_tokens"] = prompt_factor
    columns = {
        name: np.maximum(np.round(getattr(trace, name) * factor), 1).astype(getattr(trace, name).dtype)
        for name, factor in factors.items()
        if factor != 1.0
    }
    return trace.replace(**columns) if columns else trace


def _other_profiles(scenario: Scenario) -> list[HardwareProfile]:
    model = scenario.replicas[0].profile.model.name
    own = {spec.profile.name for spec in scenario.replicas}
    known = [load_profile(name) for name in profile_names()]
    return [profile for profile in known if profile.model.name == model and profile.name not in own]
