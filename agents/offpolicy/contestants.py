"""Who meets in a replay: a bundle as it would be served, or a policy by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steersman.agents.evaluate.contestants import guarded_factory
from steersman.agents.evaluate.factories import PolicyFactory, policy_factory
from steersman.agents.guard import GuardSettings
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.policies import POLICY_NAMES
from steersman.predictors.bundle import POLICY_FILE, Bundle, load_bundle
from steersman.predictors.latency import LatencyModel
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor

SHIPPED = "shipped"
"""Names the policy that ships with Steersman."""


@dataclass(frozen=True)
class Contestant:
    """A policy and its predictor of output lengths."""

    version: str
    """Of the bundle, or the policy's name."""
    policy: PolicyFactory
    length: LengthPredictor
    bundle: Bundle | None = None


def bundle_contestant(bundle: Bundle, guard: GuardSettings | None = None) -> Contestant:
    """A bundle as a router would serve it: guarded, and without a policy the shipped one on top.

    Raises:
        ArtifactError: one of its models cannot be served.
    """
    decides = bundle if POLICY_FILE in bundle.contents else load_shipped()
    factory = guarded_factory(decides, guard or GuardSettings())
    return Contestant(
        bundle.version, factory, LengthModel.from_bundle(bundle) or FallbackLength(), bundle
    )


def contestant(name_or_directory: str, guard: GuardSettings | None = None) -> Contestant:
    """A policy's name, `shipped`, or the directory of a bundle.

    Raises:
        ArtifactError: there is no such bundle, or it cannot be served.
    """
    if name_or_directory in POLICY_NAMES:
        factory = policy_factory(name_or_directory)
        return Contestant(name_or_directory, factory, FallbackLength())
    if name_or_directory == SHIPPED:
        return bundle_contestant(load_shipped(), guard)
    return bundle_contestant(load_bundle(Path(name_or_directory)), guard)


def serves_latency(bundle: Bundle | None) -> bool:
    """Whether a bundle has a latency model of its own."""
    return bundle is not None and LatencyModel.from_bundle(bundle) is not None
