"""Which constants of a policy are tuned, and between what bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policies import POLICY_NAMES, policy_options
from steersman.traces.errors import ConfigError

Value = float | int | str


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from `low` to `high`; `log`: evenly by magnitude, for which both must be positive."""

    low: float
    high: float
    log: bool = False

    def at(self, u: float) -> float:
        """The number at a place of the unit interval."""
        if self.log:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return float(f"{value:.6g}")

    def place(self, value: Value) -> float:
        """Where a number lies, at the nearer end if it lies outside."""
        number = min(max(float(value), self.low), self.high)
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def at(self, u: float) -> str:
        """The word at a place of the unit interval, which is shared out evenly."""
        return self.words[min(int(u * len(self.words)), len(self.words) - 1)]

    def place(self, value: Value) -> float:
        """The middle of a word's share."""
        return (self.words.index(str(value)) + 0.5) / len(self.words)


Space = Mapping[str, Span | Choice]

SPACES: Mapping[str, Space] = {
    "weighted-round-robin": {"exponent": Span(0.0, 4.0)},
    "p2c": {"utilisation_weight": Span(0.01, 100.0, log=True)},
    "p2c-context": {
        "utilisation_weight": Span(0.01, 100.0, log=True),
        "execution_weight": Span(0.01, 100.0, log=True),
    },
    "marginal-cost": {
        "own_weight": Span(0.1, 10.0, log=True),
        "miss_cost": Span(0.1, 20.0, log=True),
        "inflicted_weight": Span(0.1, 10.0, log=True),
        "tipping_weight": Span(0.01, 10.0, log=True),
        "congestion_weight": Span(0.1, 20.0, log=True),
        "reuse_weight": Span(0.05, 20.0, log=True),
        "eviction_weight": Span(1.0, 1000.0, log=True),
    },
    "llm-d-default": {
        "queue_weight": Span(0.02, 20.0, log=True),
        "kv_weight": Span(0.02, 20.0, log=True),
        "prefix_weight": Span(0.02, 20.0, log=True),
    },
    "llm-d-sticky": {
        "sticky_match": Span(0.05, 1.0),
        "ttft_limit_s": Span(0.01, 20.0, log=True),
    },
    "predicted-latency": {
        "ttft_weight": Span(0.01, 1.0, log=True),
        "tpot_weight": Span(0.01, 1.0, log=True),
        "affinity_match": Span(0.05, 1.0),
        "affinity_penalty_s": Span(0.01, 20.0, log=True),
    },
    "dynamo-kv": {
        "overlap_weight": Span(0.05, 20.0, log=True),
        "temperature": Span(0.0, 0.5),
    },
    "sglang-cache-aware": {
        "balance_abs": Span(1.0, 256.0, log=True),
        "balance_rel": Span(1.0, 4.0),
        "cache_threshold": Span(0.0, 1.0),
    },
    "ray-prefix": {
        "imbalanced_threshold": Span(1.0, 256.0, log=True),
        "match_threshold": Span(0.0, 1.0),
    },
    "aibrix-prefix": {
        "imbalance": Span(1.0, 256.0, log=True),
        "sigmas": Span(-1.0, 4.0),
    },
    "aibrix-vtc": {
        "window_s": Span(10.0, 1000.0, log=True),
        "least_bucket": Span(100.0, 1e6, log=True),
        "output_weight": Span(0.1, 10.0, log=True),
        "most_running": Span(1.0, 1000.0, log=True),
        "noise": Span(0.001, 10.0, log=True),
    },
    "prequal": {
        "hot_quantile": Span(0.0, 1.0),
        "latency": Choice(("e2e", "ttft", "tpot")),
        "signal": Choice(("estimate", "recent")),
    },
    "bounded-hash": {"slack": Span(0.0, 4.0)},
}
"""All constants that change a policy's choices; those with nothing to tune are not here."""


def space_of(policy: str) -> Space:
    """What is tuned of a policy.

    Raises:
        ConfigError: nothing is.
    """
    space = SPACES.get(policy)
    if space is None:
        why = "has no constants" if policy in POLICY_NAMES else "is unknown"
        raise ConfigError(f"policy '{policy}' {why}; tunable are {', '.join(SPACES)}")
    return space


def options_at(space: Space, point: NDArray[np.float64]) -> dict[str, Value]:
    """The options at a point of the unit cube, (len(space),)."""
    return {key: axis.at(float(u)) for (key, axis), u in zip(space.items(), point, strict=True)}


def published(policy: str) -> dict[str, Value]:
    """The default values of the constants that are tuned."""
    fields = policy_options(policy).model_fields
    return {key: fields[key].default for key in space_of(policy)}


def place_of(space: Space, options: Mapping[str, Value]) -> NDArray[np.float64]:
    """The point of the unit cube where these options lie, (len(space),)."""
    return np.array([axis.place(options[key]) for key, axis in space.items()])
