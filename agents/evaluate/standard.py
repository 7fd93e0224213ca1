"""The standard cells: which scenarios, loads and seeds stand behind a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from steersman.agents.evaluate.course import Protocol
from steersman.agents.evaluate.factories import Contestant
from steersman.agents.evaluate.record import RunRecord
from steersman.agents.evaluate.run import evaluate, run_count
from steersman.agents.evaluate.table import EvaluationTable, Run
from steersman.env.scenario import load_scenario
from steersman.predictors.length import FallbackLength, LengthPredictor
from steersman.traces.scenario import Scenario

SCENARIOS = (
    "homogeneous",
    "mixed",
    "prefix",
    "stale",
    "tensor-parallel",
    "tenants",
    "agents",
    "long",
    "chat",
)
QUICK_SCENARIOS = SCENARIOS[:4]
"""Those of `--quick`, and of the clairvoyant references."""
SLOW_SCENARIOS = ("agents", "long")
"""Of few and heavy requests: 1 500 instead of 5 000 are counted."""
SEEDS, SEEDS_AT_THE_EDGE = 5, 20
"""At loads below 95 %, and from there on."""
REPLICA_SCENARIOS = ("homogeneous", "mixed")
"""Those whose pools are resized to count the replicas needed, at the rate that saturates them as they
are."""


@dataclass(frozen=True)
class Part:
    """A scenario with the protocol of some of its cells."""

    scenario: Scenario
    protocol: Protocol


def full(length: LengthPredictor | None = None) -> list[Part]:
    """All standard cells, as claims need them."""
    parts = []
    for name in SCENARIOS:
        scenario = load_scenario(name)
        base = Protocol(
            requests=1500 if name in SLOW_SCENARIOS else 5000, length=length or FallbackLength()
        )
        parts.append(Part(scenario, replace(base, loads=(0.6, 0.8), seeds=tuple(range(SEEDS)))))
        parts.append(Part(scenario, replace(base, loads=(0.95,), seeds=tuple(range(SEEDS_AT_THE_EDGE)))))
    return parts


def quick(length: LengthPredictor | None = None) -> list[Part]:
    """Four scenarios at 80 and 95 %, three seeds, 3 000 requests: for watching."""
    protocol = Protocol(
        loads=(0.8, 0.95),
        seeds=(0, 1, 2),
        requests=3000,
        window_s=0.0,
        warmup_s=60.0,
        length=length or FallbackLength(),
    )
    return [Part(load_scenario(name), protocol) for name in QUICK_SCENARIOS]


def apart(length: LengthPredictor | None = None, *, brief: bool = False) -> list[Part]:
    """The cells at 40, 105 and 120 % load, which are reported apart; `brief`: as `quick`."""
    if brief:
        return [
            replace(part, protocol=replace(part.protocol, loads=(0.4, 1.05, 1.2)))
            for part in quick(length)
        ]
    standard = full(length)
    return [
        replace(part, protocol=replace(part.protocol, loads=(1.05, 1.2) if is_edge else (0.4,)))
        for part, is_edge in ((part, max(part.protocol.loads) >= 0.95) for part in standard)
    ]


def replica_pools(length: LengthPredictor | None = None, *, brief: bool = False) -> list[Part]:
    """Where the replicas for equal goodput are counted; `brief`: 3 seeds and 3 000 requests."""
    chosen = quick(length) if brief else full(length)
    parts = {part.scenario.name: part for part in reversed(chosen)}
    return [
        replace(parts[name], protocol=replace(parts[name].protocol, loads=(1.0,)))
        for name in REPLICA_SCENARIOS
    ]


def clairvoyant(length: LengthPredictor | None = None, *, seeds: int = 8) -> list[Part]:
    """The cells in which the clairvoyant references are run: 600 requests, eight episodes."""
    protocol = Protocol(
        loads=(0.8, 0.95),
        seeds=tuple(range(seeds)),
        requests=600,
        window_s=0.0,
        warmup_s=60.0,
        tail_s=20.0,
        length=length or FallbackLength(),
    )
    return [Part(load_scenario(name), protocol) for name in QUICK_SCENARIOS]


def evaluate_parts(
    contestants: Mapping[str, Contestant],
    parts: Sequence[Part],
    *,
    jobs: int = 1,
    on_progress: Callable[[float], None] | None = None,
    record: RunRecord | None = None,
) -> EvaluationTable:
    """All parts in one table; see `evaluate`.

    Args:
        record: what is in it is not run again, and what is run is added, part by part.
    """
    runs: list[Run] = []
    for scenario, protocol in ((part.scenario, part.protocol) for part in parts):
        known = {name: record.known(name, scenario, protocol) if record else [] for name in contestants}
        missing = {name: one for name, one in contestants.items() if not known[name]}
        if on_progress is not None:
            on_progress(float(sum(map(len, known.values()))))
        if missing:
            table = evaluate(missing, [scenario], protocol, jobs=jobs, on_progress=on_progress)
            if record is not None:
                record.keep(table.runs, scenario, protocol)
            known |= {name: [run for run in table.runs if run.policy == name] for name in missing}
        runs += (run for own in known.values() for run in own)
    return EvaluationTable(tuple(runs))


def runs_of(contestants: int, parts: Sequence[Part]) -> int:
    """How many runs that is."""
    return sum(run_count(contestants, 1, part.protocol) for part in parts)
