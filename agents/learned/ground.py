"""What a policy is trained for: scenarios, each with the parts of its trace that training may see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steersman.env.bulk import trace_length_features
from steersman.env.cluster import Cluster
from steersman.env.scenario import load_source, saturation_of
from steersman.predictors.length import LengthPredictor
from steersman.traces.scenario import ReplicaSpec, Scenario, Staleness
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


def cluster_under(
    trace: Trace,
    scenario: Scenario,
    length: LengthPredictor,
    *,
    seed: int,
    replicas: Sequence[ReplicaSpec] | None = None,
    staleness: Staleness | None = None,
) -> Cluster:
    """The scenario's cluster, nothing dispatched; none of its incidents happen.

    Args:
        trace: what arrives.
        length: predicts what the answers' lengths will be.
        replicas: instead of the scenario's.
        staleness: instead of the scenario's.
    """
    features = trace_length_features(trace)
    return Cluster(
        scenario.replicas if replicas is None else replicas,
        trace,
        output_quantiles=length.predict(features)[:, :2],
        length_features=features,
        staleness=scenario.staleness if staleness is None else staleness,
        prefix_cache=scenario.prefix_cache,
        seed=seed,
    )
