"""Where the episodes of an environment come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile, profile_names
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import Split, for_split, load_scenario, load_source, saturation_of
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Scenario, Staleness


class EpisodeSampler(Protocol):
    """Draws episodes: clusters with a trace, nothing dispatched yet.

    All randomness comes from the generator it is given, so equal generators draw equal episodes.
    """

    @property
    def most_replicas(self) -> int:
        """No episode has more."""
        ...

    def draw(self, rng: np.random.Generator) -> Cluster:
        """A new cluster."""
        ...


@dataclass(frozen=True, slots=True)
class Randomise:
    """What is drawn anew for every episode, each range evenly (the age of metrics log-evenly)."""

    replicas: tuple[int, int] = (2, 32)
    load: tuple[float, float] = (0.5, 1.5)
    scrape_interval_s: tuple[float, float] = (0.1, 2.0)
    straggler_share: float = 0.1
    """Share of replicas that are up to twice as slow as their profile."""


class ScenarioSampler:
    """Episodes of a scenario: blocks of its trace, resampled to its load.

    Args:
        scenario: of which replicas, load and staleness are taken.
        requests: arrivals in an episode, about.
        split: part of the trace that is used.
        randomise: draw replicas, hardware (among all profiles of the scenario's model), load and
            staleness anew for every episode; None: always the scenario's own.

    Raises:
        ConfigError: the scenario has no `saturation_rps`.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        requests: int = 1500,
        split: Split = "train",
        randomise: Randomise | None = None,
    ) -> None:
        self._scenario = scenario
        self._saturation_rps = saturation_of(scenario, split)
        self._requests = requests
        self._randomise = randomise
        self._source = load_source(scenario, split)
        self._saturation = SaturationEstimate(self._source, for_split(scenario, split))
        model = scenario.replicas[0].profile.model.name
        profiles = [load_profile(name) for name in profile_names()]
        self._profiles = [profile for profile in profiles if profile.model.name == model]
        if randomise is not None and not self._profiles:
            raise ConfigError(
                f"scenario '{scenario.name}': no profile in configs/hardware is of {model}"
            )

    @property
    def most_replicas(self) -> int:
        """Of any episode."""
        if self._randomise is None:
            return len(self._scenario.replicas)
        return self._randomise.replicas[1]

    def draw(self, rng: np.random.Generator) -> Cluster:
        """A new cluster."""
        random = self._randomise
        if random is None:
            replicas = self._scenario.replicas
            staleness = self._scenario.staleness
            rate_rps = self._scenario.load * self._saturation_rps
        else:
            replicas = self._mix(rng, random)
            staleness = _staleness(rng, random, self._scenario.staleness)
            rate_rps = rng.uniform(*random.load) * self._saturation.of(replicas)
        seed = int(rng.integers(2**31))
        trace = block_bootstrap(
            self._source, rate_rps=rate_rps, duration_s=self._requests / rate_rps, seed=seed
        )
        return Cluster(
            replicas,
            trace,
            staleness=staleness,
            prefix_cache=self._scenario.prefix_cache,
            seed=seed,
            conditions=self._scenario.conditions if random is None else None,
        )

    def _mix(self, rng: np.random.Generator, random: Randomise) -> tuple[ReplicaSpec, ...]:
        """A pool of one to three kinds of hardware, some replicas of which are slow."""
        count = int(rng.integers(random.replicas[0], random.replicas[1] + 1))
        kinds = rng.choice(len(self._profiles), size=min(3, len(self._profiles)), replace=False)
        kinds = kinds[: int(rng.integers(1, len(kinds) + 1))]
        picks = rng.choice(kinds, size=count)
        slow = rng.random(count) < random.straggler_share
        slowdown = np.where(slow, rng.uniform(1.0, 2.0, count), 1.0)
        return tuple(
            ReplicaSpec(f"replica-{i}", self._profiles[int(pick)], float(slowdown[i]))
            for i, pick in enumerate(picks)
        )


def _staleness(rng: np.random.Generator, random: Randomise, own: Staleness) -> Staleness:
    low, high = np.log(random.scrape_interval_s)
    return replace(own, scrape_interval_s=float(np.exp(rng.uniform(low, high))))


def scenario_sampler(scenario: str, requests: int, randomise: bool) -> ScenarioSampler:
    """Episodes of a scenario by name, with the default ranges if they are randomised."""
    return ScenarioSampler(
        load_scenario(scenario), requests=requests, randomise=Randomise() if randomise else None
    )
