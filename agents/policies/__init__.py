"""Routing policies by name (SPEC B1). `docs/policies.md` says when to use which."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from steersman.agents.policies.aibrix import (
    AibrixPrefix,
    AibrixPrefixOptions,
    AibrixVtc,
    AibrixVtcOptions,
)
from steersman.agents.policies.chance import Random
from steersman.agents.policies.completion import EarliestCompletion
from steersman.agents.policies.connections import LeastConnections, WeightedLeastConnections
from steersman.agents.policies.dynamo import DynamoKv, DynamoKvOptions
from steersman.agents.policies.hashing import BoundedHash, BoundedHashOptions
from steersman.agents.policies.latency import PredictedLatency, PredictedLatencyOptions
from steersman.agents.policies.llmd import LlmDDefault, LlmDOptions, LlmDSticky, LlmDStickyOptions
from steersman.agents.policies.marginal import MarginalCost, MarginalCostOptions
from steersman.agents.policies.p2c import P2C, P2CContext, P2CContextOptions, P2COptions
from steersman.agents.policies.prequal import Prequal, PrequalOptions
from steersman.agents.policies.ray import RayPrefix, RayPrefixOptions
from steersman.agents.policies.rotation import RoundRobin, WeightedRoundRobin, WeightedRoundRobinOptions
from steersman.agents.policies.scored import NoOptions
from steersman.agents.policies.sglang import SglangCacheAware, SglangOptions
from steersman.agents.policies.vllm import ProductionStackPrefix, VllmDp
from steersman.agents.policy import Policy
from steersman.predictors.latency import LatencyPredictor
from steersman.traces.errors import ConfigError
from steersman.traces.settings import Settings, parse_settings


class _Registered(NamedTuple):
    build: Callable[[Any, np.random.Generator], Policy]
    options: type[Settings]
    equivariant: bool = True


_POLICIES: dict[str, _Registered] = {
    "random": _Registered(Random, NoOptions),
    "round-robin": _Registered(RoundRobin, NoOptions, equivariant=False),
    "weighted-round-robin": _Registered(
        WeightedRoundRobin, WeightedRoundRobinOptions, equivariant=False
    ),
    "least-connections": _Registered(LeastConnections, NoOptions),
    "weighted-least-connections": _Registered(WeightedLeastConnections, NoOptions),
    "p2c": _Registered(P2C, P2COptions),
    "p2c-context": _Registered(P2CContext, P2CContextOptions),
    "earliest-completion": _Registered(EarliestCompletion, NoOptions),
    "marginal-cost": _Registered(MarginalCost, MarginalCostOptions),
    "vllm-dp": _Registered(VllmDp, NoOptions),
    "production-stack-prefix": _Registered(ProductionStackPrefix, NoOptions),
    "llm-d-default": _Registered(LlmDDefault, LlmDOptions),
    "llm-d-sticky": _Registered(LlmDSticky, LlmDStickyOptions),
    "predicted-latency": _Registered(PredictedLatency, PredictedLatencyOptions),
    "dynamo-kv": _Registered(DynamoKv, DynamoKvOptions),
    "sglang-cache-aware": _Registered(SglangCacheAware, SglangOptions, equivariant=False),
    "ray-prefix": _Registered(RayPrefix, RayPrefixOptions, equivariant=False),
    "aibrix-prefix": _Registered(AibrixPrefix, AibrixPrefixOptions),
    "aibrix-vtc": _Registered(AibrixVtc, AibrixVtcOptions, equivariant=False),
    "prequal": _Registered(Prequal, PrequalOptions),
    "bounded-hash": _Registered(BoundedHash, BoundedHashOptions, equivariant=False),
}

POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)
"""Every name `make_policy` knows."""


def make_policy(
    name: str,
    *,
    seed: int | np.random.Generator,
    options: Mapping[str, Any] | None = None,
    latency: LatencyPredictor | None = None,
) -> Policy:
    """A fresh policy, with its own state and random generator.

    Args:
        name: one of POLICY_NAMES.
        seed: of its generator; the same seed and observations give the same decisions.
        options: the policy's own keys (`policy_options(name)` documents them); None for defaults.
        latency: for `predicted-latency`, which asks it for every candidate; None: the analytic estimate.

    Raises:
        ConfigError: unknown name or key, or a value out of range, in one line.
    """
    registered = _look_up(name)
    settings = parse_settings(
        dict(options or {}), registered.options, source=f"options of policy '{name}'"
    )
    rng = np.random.default_rng(seed)
    if latency is not None and isinstance(settings, PredictedLatencyOptions):
        return PredictedLatency(settings, rng, latency)
    return registered.build(settings, rng)


def policy_options(name: str) -> type[Settings]:
    """The typed options of a policy.

    Raises:
        ConfigError: unknown name.
    """
    return _look_up(name).options


def is_equivariant(name: str) -> bool:
    """Whether reordering the replicas only reorders the policy's answers.

    Raises:
        ConfigError: unknown name.
    """
    return _look_up(name).equivariant


def _look_up(name: str) -> _Registered:
    registered = _POLICIES.get(name)
    if registered is None:
        close = difflib.get_close_matches(name, POLICY_NAMES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known policies: {', '.join(POLICY_NAMES)}"
        raise ConfigError(f"unknown policy '{name}'; {hint}")
    return registered
