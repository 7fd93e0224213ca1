"""What a policy is trained for: scenarios, each with the parts of its trace that training may see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steersman.env.scenario import load_source, saturation_of
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace


@dataclass(frozen=True)
class Ground:
    """One scenario, its saturation measured.

    Raises:
        ConfigError: the saturation is unknown.
    """

    scenario: Scenario
    source: Trace
    """The training part of its trace, for practice."""
    tuning: Trace
    """The tuning part, for checks on the way."""

    def __post_init__(self) -> None:
        """Without a saturation there is no load to practise at."""
        saturation_of(self.scenario, "train")

    @property
    def reuses(self) -> bool:
        """Whether engines cache prefixes that requests share: what is chosen now is felt for long."""
        return self.scenario.prefix_cache and len(self.source.block_hashes) > 0


def grounds_of(scenarios: Iterable[Scenario]) -> list[Ground]:
    """The grounds of these scenarios.

    Raises:
        ConfigError: the saturation of one is unknown.
    """
    return [
        Ground(scenario, load_source(scenario, "train"), load_source(scenario, "tune"))
        for scenario in scenarios
    ]
