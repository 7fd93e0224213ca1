"""The clusters a policy practises on: those of its scenarios, and random ones of the same models.

A policy that has only ever seen one pool at one load knows nothing when a replica fails or traffic
doubles. So the number of replicas, their hardware, their slowdowns, the load and the age of the
metrics are drawn anew for every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from steersman.agents.learned.config import PracticeSettings
from steersman.agents.learned.ground import Ground, cluster_under
from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile, profile_names, with_limits
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import for_split
from steersman.predictors.length import LengthPredictor
from steersman.traces.bootstrap import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.schema import HardwareProfile
from steersman.traces.trace import Trace

STRAGGLER_SHARE = 0.1
"""Share of replicas of a random pool that are slower than their hardware."""
MOST_SLOWDOWN = 2.0
FEWEST_SEQS = 8
"""Sequences that an engine of a tight pool runs at once, at least."""
LEAST_MEMORY = 0.2
"""Share of its profile's KV memory that an engine of a lean pool has, at least."""
LEAST_REQUESTS = 3
"""Of the longest requests of the trace, that fit that memory at once, at least."""
MOST_IN_FLIGHT = 2048
"""Requests a cluster has room for from the start: clones that grow by themselves copy everything."""
BUSY = 0.8
"""Load from which on episodes are stretched."""
MOST_WARMUP = 2
"""Requests before an episode, over those of the longest one, at most."""
GAP = 0.02
"""Difference of two ratios by which one ground is emphasised e times as much as another."""


class Plan(NamedTuple):
    """Of a cluster to practise on."""

    ground: int
    replicas: tuple[ReplicaSpec, ...]
    rate_rps: float
    begin_s: float
    """When its episode begins; what arrives before that warms it up."""
    end_s: float
    seed: int
    scrape_interval_s: float

    @property
    def requests(self) -> float:
        """That will arrive, about."""
        return self.rate_rps * self.end_s


def companions(plans: Sequence[Plan], size: int) -> list[list[int]]:
    """Positions of the plans, in groups of `size` for lockstep: alike in length and size they keep each
    other company to the end. The longest come first: who is done then takes what is left."""
    order = sorted(range(len(plans)), key=lambda i: (-plans[i].requests, -len(plans[i].replicas)))
    return [order[first : first + size] for first in range(0, len(order), size)]


class Practice:
    """Draws clusters, ready to run.

    Args:
        grounds: scenarios whose replicas, model, limits and prefix cache are practised, and the traces
            that arrivals are drawn from; at least one.
        length: predicts output lengths, as the router will.

    Raises:
        ConfigError: a profile of the settings serves another model.
    """

    def __init__(
        self, grounds: Sequence[Ground], length: LengthPredictor, settings: PracticeSettings
    ) -> None:
        self.settings = settings
        self._length = length
        self._fields = [_Field(ground, settings) for ground in grounds]
        self._chances = np.full(len(grounds), 1.0 / len(grounds))

    @property
    def most_replicas(self) -> int:
        """Size of the largest cluster it draws."""
        return max(self.settings.replicas[1], *(len(field.scenario.replicas) for field in self._fields))

    def emphasise(self, ratios: Sequence[float]) -> None:
        """From now on practise more where more is to be gained.

        Args:
            ratios: cost over the baseline's on each ground, (grounds,): the higher, the oftener it is
                drawn. Half of all draws stay evenly spread, so that nothing is forgotten.
        """
        gaps = np.exp((np.asarray(ratios) - np.max(ratios)) / GAP)
        self._chances = 0.5 / len(gaps) + 0.5 * gaps / gaps.sum()

    def draw(
        self, rng: np.random.Generator, *, share: float = 1.0, ground: int | None = None
    ) -> Cluster:
        """A new cluster, nothing dispatched.

        Args:
            share: of `episode_requests`, that arrive.
            ground: which one; None: drawn.
        """
        return self.make(self.plan(rng, share=share, ground=ground))

    def plan(
        self,
        rng: np.random.Generator,
        *,
        share: float = 1.0,
        ground: int | None = None,
        warmup_s: tuple[float, float] = (0.0, 0.0),
    ) -> Plan:
        """What a new cluster is to be: all that is random, at little cost.

        Args:
            share: of `episode_requests`, that arrive.
            ground: which one; None: drawn.
            warmup_s: bounds of the time before its episode, drawn uniformly; shortened where it would
                take more than `MOST_WARMUP` times the requests of the longest episode.
        """
        s = self.settings
        if ground is None:
            ground = int(rng.choice(len(self._fields), p=self._chances))
        field = self._fields[ground]
        own = rng.random() < s.scenario_share
        replicas = field.scenario.replicas if own else field.mix(rng)
        load = rng.uniform(*s.scenario_load.get(field.scenario.name, s.load))
        rate_rps = load * field.saturation.of(replicas)
        least_s = s.reuse_episode_s if field.reuses else s.episode_s
        if load >= BUSY:
            least_s *= s.busy_stretch
        requests = max(s.episode_requests, min(s.most_requests, int(least_s * rate_rps)))
        seed = int(rng.integers(2**31))
        interval_s = float(np.exp(rng.uniform(*np.log(s.scrape_interval_s))))
        begin_s = 0.0
        if warmup_s[1] > 0.0:
            begin_s = min(float(rng.uniform(*warmup_s)), MOST_WARMUP * s.most_requests / rate_rps)
        end_s = begin_s + max(requests * share, 20) / rate_rps
        return Plan(ground, replicas, rate_rps, begin_s, end_s, seed, interval_s)

    def make(self, plan: Plan) -> Cluster:
        """The cluster of a plan, nothing dispatched."""
        field = self._fields[plan.ground]
        trace = block_bootstrap(
            field.source, rate_rps=plan.rate_rps, duration_s=plan.end_s, seed=plan.seed
        )
        staleness = replace(field.scenario.staleness, scrape_interval_s=plan.scrape_interval_s)
        cluster = cluster_under(
            trace,
            field.scenario,
            self._length,
            seed=plan.seed,
            replicas=plan.replicas,
            staleness=staleness,
        )
        cluster.make_room(MOST_IN_FLIGHT)
        return cluster


class _Field:
    """One ground, and what pools can be mixed for it."""

    def __init__(self, ground: Ground, settings: PracticeSettings) -> None:
        self.scenario = ground.scenario
        self.source = ground.source
        self.saturation = SaturationEstimate(ground.source, for_split(ground.scenario, "train"))
        self.reuses = ground.reuses
        self._replicas = settings.replicas
        self._tight_share = settings.tight_share
        self._lean_share = settings.lean_share
        self._least_kv_tokens = LEAST_REQUESTS * _longest_tokens(ground.source)
        self._profiles = _profiles(ground.scenario, settings)

    def mix(self, rng: np.random.Generator) -> tuple[ReplicaSpec, ...]:
        """Half of the replicas as in the scenario, half of other hardware under the same limits.

        In a tight pool requests queue for slots rather than for compute or memory. In a lean one, for
        prompts that share prefixes, these do not stay cached for long.
        """
        low, high = self._replicas
        tight = rng.random() < self._tight_share
        share = float(np.exp(rng.uniform(np.log(1 / 32), 0.0))) if tight else 1.0
        lean = self.reuses and rng.random() < self._lean_share
        memory = float(np.exp(rng.uniform(np.log(LEAST_MEMORY), 0.0))) if lean else 1.0
        count = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
        specs = []
        for i in range(count):
            like = self.scenario.replicas[int(rng.integers(len(self.scenario.replicas)))].profile
            profile = like
            if self._profiles and rng.random() < 0.5:
                profile = with_limits(
                    self._profiles[int(rng.integers(len(self._profiles)))],
                    max_num_seqs=like.max_num_seqs,
                    max_batched_tokens=like.max_batched_tokens,
                )
            kv_tokens = profile.kv_capacity_tokens
            profile = with_limits(
                profile,
                max_num_seqs=_fewer(profile.max_num_seqs, share),
                kv_capacity_tokens=max(int(memory * kv_tokens), min(self._least_kv_tokens, kv_tokens)),
            )
            straggles = rng.random() < STRAGGLER_SHARE
            slowdown = float(rng.uniform(1.0, MOST_SLOWDOWN)) if straggles else 1.0
            specs.append(ReplicaSpec(f"{profile.gpu}-{i}", profile, slowdown))
        return tuple(specs)


def _longest_tokens(source: Trace) -> int:
    return int((source.input_tokens + source.output_tokens).max())


def _fewer(max_num_seqs: int, share: float) -> int:
    return max(int(share * max_num_seqs), min(FEWEST_SEQS, max_num_seqs))


def _profiles(scenario: Scenario, settings: PracticeSettings) -> list[HardwareProfile]:
    model = scenario.replicas[0].profile.model.name
    named = [load_profile(name) for name in settings.profiles or profile_names()]
    fitting = [profile for profile in named if profile.model.name == model]
    if settings.profiles and len(fitting) < len(named):
        wrong = next(profile for profile in named if profile.model.name != model)
        raise ConfigError(
            f"practice.profiles: '{wrong.name}' serves {wrong.model.name}, "
            f"the scenario '{scenario.name}' {model}; name profiles of that model"
        )
    return fitting
