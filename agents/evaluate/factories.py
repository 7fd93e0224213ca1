"""How an evaluation makes its policies: a fresh one for every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steersman.agents.evaluate.references import Reference
from steersman.agents.guard import Clock
from steersman.agents.policies import make_policy
from steersman.agents.policy import Policy
from steersman.predictors.latency import LatencyPredictor

PolicyFactory = Callable[[int, Clock], Policy]
"""Makes a fresh policy from a seed and the clock of the simulation."""


@dataclass(frozen=True)
class PerScenario:
    """Other constants in every scenario, as a baseline tuned for each has."""

    of: Callable[[str], PolicyFactory]
    """The factory for a scenario's name; a ConfigError if there is none."""


Contestant = PolicyFactory | Reference | PerScenario


def policy_factory(
    name: str,
    options: Mapping[str, object] | None = None,
    latency: LatencyPredictor | None = None,
) -> PolicyFactory:
    """The factory of a policy of `agents/policies`; arguments as of `make_policy`.

    Raises:
        ConfigError: unknown name or option; at once, not when the run begins.
    """
    make_policy(name, seed=0, options=options)

    def make(seed: int, clock: Clock) -> Policy:
        del clock
        return make_policy(name, seed=seed, options=options, latency=latency)

    return make
