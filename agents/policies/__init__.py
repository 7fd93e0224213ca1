"""Routing policies by name (SPEC B1). `docs/policies.md` says when to use which."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from steersman.agents.policies.chance import Random
from steersman.agents.policies.connections import LeastConnections, WeightedLeastConnections
from steersman.agents.policies.p2c import P2C, P2CContext, P2CContextOptions, P2COptions
from steersman.agents.policies.peers import LlmDDefault, LlmDOptions, VllmDp
from steersman.agents.policies.predicted import EarliestCompletion, MarginalCost
from steersman.agents.policies.rotation import RoundRobin, WeightedRoundRobin, WeightedRoundRobinOptions
from steersman.agents.policies.scored import NoOptions
from steersman.agents.policy import Policy
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
    "marginal-cost": _Registered(MarginalCost, NoOptions),
    "vllm-dp": _Registered(VllmDp, NoOptions),
    "llm-d-default": _Registered(LlmDDefault, LlmDOptions),
}

POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)
"""Every name `make_policy` knows."""


def make_policy(
    name: str, *, seed: int | np.random.Generator, options: Mapping[str, Any] | None = None
) -> Policy:
    """A fresh policy, with its own state and random generator.

    Args:
        name: one of POLICY_NAMES.
        seed: of its generator; the same seed and observations give the same decisions.
        options: the policy's own keys (`policy_options(name)` documents them); None for defaults.

    Raises:
        ConfigError: unknown name or key, or a value out of range, in one line.
    """
    registered = _look_up(name)
    settings = parse_settings(
        dict(options or {}), registered.options, source=f"options of policy '{name}'"
    )
    return registered.build(settings, np.random.default_rng(seed))


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
