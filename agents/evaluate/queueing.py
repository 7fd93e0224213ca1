"""What the queue in the router changes, class by class: the same arrivals with it and without."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Course, course
from steersman.agents.evaluate.figures import Figures, summarise
from steersman.agents.evaluate.run import Protocol
from steersman.agents.policies import make_policy
from steersman.agents.queueing.settings import LEVELS, QueueSettings
from steersman.agents.queueing.simulated import play_queued
from steersman.env.outcomes import STATUSES, OutcomeTable
from steersman.env.scenario import load_source
from steersman.env.vector import ClusterBatch
from steersman.traces.scenario import Scenario
from steersman.traces.schema import Status
from steersman.traces.trace import Trace

CLASS_SHARES = (0.4, 0.2, 0.25, 0.15)
"""Of P0 to P3 in the experiment."""


@dataclass(frozen=True)
class ClassFigures:
    """One class of one run; times in seconds, NaN where nobody was served."""

    requests: int
    refused: float
    """Share that the queue turned away."""
    unserved: float
    """Share that was neither served nor refused."""
    slo_attainment: float
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_longest_s: float
    """Of those served: how long the unluckiest waited."""


@dataclass(frozen=True)
class PressureFigures:
    """How one class fares while the pressure lasts; see `under_pressure`."""

    requests: int
    begun: float
    """Share of those that had their first token by the end of it."""
    refused: float
    """Share of those turned away by then, or later."""
    longest_wait_s: float
    """For a first token; of who still waits at the end, until then. NaN without anybody."""


@dataclass(frozen=True)
class QueueRun:
    """One policy with one queue (or none), once."""

    policy: str
    queue: str
    load: float
    seed: int
    figures: Figures
    classes: tuple[ClassFigures, ...]
    pressure: tuple[PressureFigures, ...] = ()
    """Of each class until arrivals stopped."""


def with_class_shares(trace: Trace, shares: Sequence[float] = CLASS_SHARES) -> Trace:
    """The same requests, with a class each by a hash of its id."""
    drawn = np.array([zlib.crc32(request_id.encode()) / 2**32 for request_id in trace.request_ids])
    level = np.searchsorted(np.cumsum(shares)[:-1], drawn, side="right")
    return replace(trace, priority=level.astype(np.int8))


def by_class(outcomes: OutcomeTable, *, start_s: float, end_s: float) -> tuple[ClassFigures, ...]:
    """The figures of each class, over the requests that arrived in the window."""
    counted = (outcomes.arrival_s >= start_s) & (outcomes.arrival_s < end_s)
    return tuple(_class(outcomes, counted & (outcomes.priority == level)) for level in range(LEVELS))


def _class(outcomes: OutcomeTable, rows: NDArray[np.bool_]) -> ClassFigures:
    n = max(int(rows.sum()), 1)
    served = rows & outcomes.ok
    refused = rows & (outcomes.status == STATUSES.index(Status.REJECTED))
    ttft_s = outcomes.ttft_s[served]
    p50_s, p99_s, longest_s = (
        np.quantile(ttft_s, (0.5, 0.99, 1.0)) if len(ttft_s) else (float("nan"),) * 3
    )
    return ClassFigures(
        requests=int(rows.sum()),
        refused=float(refused.sum() / n),
        unserved=float((rows & ~served & ~refused).sum() / n),
        slo_attainment=float((rows & outcomes.slo_met).sum() / n),
        ttft_p50_s=float(p50_s),
        ttft_p99_s=float(p99_s),
        ttft_longest_s=float(longest_s),
    )


def under_pressure(
    arrival_s: NDArray[np.float64],
    ttft_s: NDArray[np.float64],
    refused: NDArray[np.bool_],
    priority: NDArray[np.integer[Any]],
    *,
    start_s: float,
    end_s: float,
    until_s: float,
) -> tuple[PressureFigures, ...]:
    """What the requests of each class that arrived from `start_s` to `end_s` had by `until_s`.

    Starvation shows only while others keep coming: once arrivals stop, everybody is served.

    Args:
        ttft_s: (n,) from arrival on; NaN without a first token.
        until_s: when arrivals stopped.
    """
    waited_s = np.where(np.isnan(ttft_s), np.inf, ttft_s)
    figures = []
    for level in range(LEVELS):
        own = (arrival_s >= start_s) & (arrival_s < end_s) & (priority == level)
        begun = own & (arrival_s + waited_s <= until_s)
        held = own & ~refused
        n = max(int(own.sum()), 1)
        longest_s = np.minimum(waited_s[held], until_s - arrival_s[held]).max(initial=-np.inf)
        figures.append(
            PressureFigures(
                requests=int(own.sum()),
                begun=float(begun.sum() / n),
                refused=float((own & refused).sum() / n),
                longest_wait_s=float(longest_s) if held.any() else float("nan"),
            )
        )
    return tuple(figures)


def compare_queues(
    scenario: Scenario,
    policies: Sequence[str],
    queues: Mapping[str, QueueSettings],
    protocol: Protocol,
    *,
    priorities: bool,
    shares: Sequence[float] = CLASS_SHARES,
    only: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[QueueRun]:
    """Play every policy with every queue at every load with every seed.

    Args:
        scenario: with its saturation measured.
        policies: names.
        queues: by name; one that is not enabled lets everything through.
        protocol: of the evaluation; its loads are those compared.
        priorities: whether the engines look at the requests' classes too.
        shares: of the classes.
        only: of all these arrivals, those of this class alone; None: all.
        on_progress: told the number of runs done since the last call.
    """
    conditions = replace(scenario.conditions, priority_scheduling=priorities)
    scenario = replace(scenario, conditions=conditions)
    source = with_class_shares(load_source(scenario, protocol.split), shares)
    runs = []
    for load in protocol.loads:
        for seed in protocol.seeds:
            here = course(scenario, load, seed, protocol, source)
            if only is not None:
                here = _only(here, only)
            for queue, settings in queues.items():
                runs += _play(here, policies, queue, settings, protocol)
                if on_progress is not None:
                    on_progress(len(policies))
    return runs


def _only(here: Course, level: int) -> Course:
    """The same arrivals without those of other classes."""
    rows = here.trace.priority == level
    return replace(
        here,
        trace=here.trace.select(rows),
        quantiles=here.quantiles[rows],
        features=here.features[rows],
        _fresh={},
    )


def _play(
    here: Course, policies: Sequence[str], queue: str, settings: QueueSettings, protocol: Protocol
) -> list[QueueRun]:
    batch = ClusterBatch([here.cluster() for _ in policies])
    made = [make_policy(name, seed=here.seed) for name in policies]
    play_queued(batch, made, [settings] * len(made), drain_s=protocol.drain_s)
    runs = []
    for index, name in enumerate(policies):
        batch.finish(index, protocol.drain_s)
        outcomes = batch.clusters[index].outcomes()
        window = {"start_s": protocol.warmup_s, "end_s": here.end_s}
        figures = summarise(outcomes, **window, replicas=len(here.scenario.replicas))
        classes = by_class(outcomes, **window)
        pressure = under_pressure(
            outcomes.arrival_s,
            outcomes.ttft_s,
            outcomes.status == STATUSES.index(Status.REJECTED),
            outcomes.priority,
            **window,
            until_s=here.end_s + protocol.tail_s,
        )
        runs.append(QueueRun(name, queue, here.cell.load, here.seed, figures, classes, pressure))
    return runs
