"""Policies by name, the learned one of a bundle included, as the factories that an evaluation runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from steersman.agents.evaluate.constants import ALL, load_tuned
from steersman.agents.evaluate.factories import Contestant, PerScenario, PolicyFactory, policy_factory
from steersman.agents.evaluate.references import Reference
from steersman.agents.guard import Clock, Guard, GuardSettings
from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.policy import Policy
from steersman.predictors.bundle import Bundle, load_bundle
from steersman.predictors.latency import LatencyModel, LatencyPredictor
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.traces.errors import ConfigError

LEARNED = "learned"
_TUNED = ":tuned"
_ONCE = ":tuned-once"


def contestants(
    names: Sequence[str], bundle: Bundle | None = None, guard: GuardSettings | None = None
) -> dict[str, Contestant]:
    """Factories in the order of the names; `learned` is the bundle's policy, always guarded; without a
    bundle, the one that ships with Steersman.

    The names of the references (`references.py`) are known too, and
    `NAME:tuned` and `NAME:tuned-once` are a policy with the constants found for each scenario, or for
    all together (`configs/policies/tuned/`).

    Raises:
        ConfigError: an unknown name, or a name twice.
        ArtifactError: the bundle's policy cannot be served.
    """
    factories: dict[str, Contestant] = {}
    latency = None if bundle is None else LatencyModel.from_bundle(bundle)
    for name in names:
        if name in factories:
            raise ConfigError(f"policy '{name}' is named twice; name each once")
        if name in {reference.value for reference in Reference}:
            factories[name] = Reference(name)
        elif name.endswith(_TUNED):
            policy = name.removesuffix(_TUNED)
            factories[name] = PerScenario(partial(_tuned, policy, latency))
        elif name.endswith(_ONCE):
            factories[name] = _tuned(name.removesuffix(_ONCE), latency, ALL)
        elif name != LEARNED:
            factories[name] = policy_factory(name, latency=latency)
        else:
            factories[name] = guarded_factory(bundle or load_shipped(), guard or GuardSettings())
    return factories


def _tuned(policy: str, latency: LatencyPredictor | None, scenario: str) -> PolicyFactory:
    return policy_factory(policy, load_tuned(policy, scenario).options, latency)


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
