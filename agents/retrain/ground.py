"""What the policy practises on: the cluster a log tells of, as a scenario with the log's own traffic."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from steersman.agents.offpolicy.hardware import profile_of_row
from steersman.agents.offpolicy.world import Kind, World
from steersman.env.calibrate import profile_yaml
from steersman.env.saturation import SaturationEstimate, measure_saturation
from steersman.predictors import ledger as L
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.schema import HardwareProfile
from steersman.traces.writers import write_trace

TUNE_SHARE = 0.2
"""Last share of what is learned from, on which training checks itself."""
SLOWDOWNS = (0.25, 4.0)
"""A fitted speed beyond them is taken for a mistake of the fit."""
_BATCH, _CONTEXT, _CHUNK = 8, 1_000, 512
"""An iteration by which speeds are compared: decoding sequences, tokens of each and of a prompt."""


def practice_scenario(world: World, directory: Path) -> Scenario:
    """The log's cluster and traffic, saturation measured.

    The replicas are what the router was told they are, and slower or faster by the factor that was
    fitted: so the policy practises with the features it will be served with, in which a wrong profile is
    a bias.

    Args:
        world: of the part of the log that is learned from.
        directory: where the traffic is written to.

    Raises:
        ConfigError: the directory cannot be written.
    """
    parts = world.trace.split((1.0 - TUNE_SHARE, TUNE_SHARE))
    traces = {}
    for name, part in zip(("train", "tune"), parts, strict=True):
        path = directory / f"{name}.parquet"
        write_trace(path, part.requests())
        traces[name] = str(path)
    replicas = replicas_as_believed(world)
    estimate = SaturationEstimate(parts[0]).of(replicas)
    scenario = Scenario(
        name="log",
        replicas=replicas,
        trace=traces["train"],
        load=min(world.trace.rate_rps / estimate, 1.5),
        staleness=world.staleness,
        prefix_cache=world.prefix_cache,
        split_traces={**traces, "evaluation": traces["tune"]},
    )
    return replace(scenario, saturation_rps=measure_saturation(scenario, "train"))


def replicas_as_believed(world: World) -> tuple[ReplicaSpec, ...]:
    """The replicas by their configured profiles, with the fitted speed as a slowdown."""
    kind_of = {name: kind for kind in world.kinds for name in kind.replicas}
    return tuple(
        _as_believed(spec.replica_id, kind_of[spec.replica_id], row, spec.profile.model.name)
        for spec, row in zip(world.specs, world.believed, strict=True)
    )


def profile_files(world: World) -> dict[str, bytes]:
    """The fitted profiles, as files of `configs/hardware/` by name; those that stay are left out."""
    files = {}
    for kind in world.kinds:
        if kind.fit is None:
            continue
        name = f"{kind.profile.name}-{'-'.join(kind.replicas)}"[:80]
        try:
            text = profile_yaml(
                kind.fit, name=name, model=kind.profile.model.name, source="fitted to the outcome log"
            )
        except ConfigError:  # of a profile that was only known by its times, the memory makes no sense
            continue
        files[f"profiles/{name}.yaml"] = text.encode()
    return files


def _as_believed(name: str, kind: Kind, row: np.ndarray, model: str) -> ReplicaSpec:
    configured = profile_of_row(row, model)
    if kind.fit is None:
        slowdown = math.exp(float(row[L.LOG_BIAS_TPOT]))
    else:
        slowdown = _iteration_s(kind.profile) / _iteration_s(configured)
    return ReplicaSpec(name, configured, float(np.clip(slowdown, *SLOWDOWNS)))


def _iteration_s(profile: HardwareProfile) -> float:
    """A decode iteration and one with a prompt, together; see `HardwareProfile`."""
    decode_s = profile.host_overhead_s + _BATCH * (
        profile.decode_seq_s + profile.decode_context_s * _CONTEXT
    )
    prefill_s = (
        profile.prefill_base_s
        + profile.prefill_token_s * _CHUNK
        + profile.prefill_token2_s * float(_CHUNK) ** 2
    )
    return 2 * decode_s + profile.decode_base_s + max(profile.decode_base_s, prefill_s)
