"""Policies by name, the learned one of a bundle included, as the factories that an evaluation runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steersman.agents.evaluate.run import PolicyFactory, policy_factory
from steersman.agents.guard import Clock, Guard, GuardSettings
from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.policy import Policy
from steersman.predictors.bundle import Bundle, load_bundle
from steersman.predictors.latency import LatencyModel
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.traces.errors import ConfigError

LEARNED = "learned"


def contestants(
    names: Sequence[str], bundle: Bundle | None = None, guard: GuardSettings | None = None
) -> dict[str, PolicyFactory]:
    """Factories in the order of the names; `learned` is the bundle's policy, always guarded.

    Raises:
        ConfigError: an unknown name, a name twice, or `learned` without a bundle.
        ArtifactError: the bundle's policy cannot be served.
    """
    factories: dict[str, PolicyFactory] = {}
    latency = None if bundle is None else LatencyModel.from_bundle(bundle)
    for name in names:
        if name in factories:
            raise ConfigError(f"policy '{name}' is named twice; name each once")
        if name != LEARNED:
            factories[name] = policy_factory(name, latency=latency)
        elif bundle is None:
            raise ConfigError("policy 'learned' needs a model; give the bundle's directory (--bundle)")
        else:
            factories[name] = guarded_factory(bundle, guard or GuardSettings())
    return factories


def guarded_factory(bundle: Bundle, guard: GuardSettings) -> PolicyFactory:
    """The bundle's policy behind the guard.

    Raises:
        ArtifactError: it has none, or it cannot be served; at once, not when the run begins.
    """
    LearnedPolicy.from_bundle(bundle, np.random.default_rng(0))

    def make(seed: int, clock: Clock) -> Policy:
        rng = np.random.default_rng(seed)
        return Guard.make(LearnedPolicy.from_bundle(bundle, rng), guard, seed=rng, clock=clock)

    return make


def open_bundle(directory: Path | None) -> tuple[Bundle | None, LengthPredictor]:
    """A bundle and its length model, or none and the fallback.

    Raises:
        ArtifactError: it is missing, corrupt or mismatched.
    """
    if directory is None:
        return None, FallbackLength()
    bundle = load_bundle(directory)
    return bundle, LengthModel.from_bundle(bundle) or FallbackLength()
