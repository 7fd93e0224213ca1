"""What a cluster is and what befalls it: replicas, what the router knows of them, load, and faults.

Times are seconds from the start of the trace, sizes tokens unless the name says else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from steersman.traces.schema import HardwareProfile


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica of a scenario."""

    replica_id: str
    profile: HardwareProfile
    slowdown: float = 1.0
    """A straggler's factor on every iteration; 1 is healthy."""
    standby: bool = False
    """Not there at first: it costs nothing and serves nothing until it is started."""
    cold_start_s: float = 224.0
    """From start to serving. The default is typical of a vLLM pod (`configs/cold_starts.yaml`)."""


class ChangeKind(StrEnum):
    """What can happen to a replica."""

    FAIL = "fail"
    """It breaks: all that it holds fails, its cache is lost, it accepts nothing."""
    RECOVER = "recover"
    """A broken one is back, empty."""
    DRAIN = "drain"
    """It takes nothing new, finishes what it has, and is gone."""
    START = "start"
    """It serves after its cold start; one that drains goes on serving at once."""
    SLOW = "slow"
    """Its iterations take `factor` times as long from now on; 1 is back to normal."""


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """Something that happens to a replica at a given time of a simulation."""

    at_s: float
    replica: int
    kind: ChangeKind
    factor: float = 1.0
    """Of `SLOW`."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the router's view of the engines' metrics is."""

    scrape_interval_s: float = 0.2
    jitter: float = 0.1
    """Each interval is drawn from interval * (1 ± jitter)."""
    loss: float = 0.0
    """Share of scrapes that fail."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """What LoRA adapters cost a replica."""

    most: int = 4
    """Loaded at once (vLLM's `--max-loras`); the least recently used makes way."""
    load_s: float = 0.1
    """Time an iteration takes longer when an adapter is loaded."""


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """Replicas that share a GPU (or a tensor-parallel group of them): see `env/sharing.py`."""

    replicas: tuple[int, ...]
    mode: str = "time-slice"
    """`time-slice` or `mps`."""
    slice_ms: float = 20.0
    """10 for latency to 50 for throughput."""
    weights: tuple[float, ...] = ()
    """Length of each one's slices, over `slice_ms`; empty: equal."""
    preemptive: bool = True
    """Whether a slice ends within an iteration."""
    overhead: float = 0.04
    """Of MPS, on every iteration."""
    demands: tuple[float, ...] = ()
    """Share of the GPU that each one's iterations can use (MPS); empty: all of it."""
    memory_reserve: float = 0.05
    """Share of the memory that stays free."""


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Prefill and decode on different replicas: see `env/disaggregation.py`."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    bandwidth_gb_s: float = 25.0
    """Of a transfer of KV cache, gigabytes a second. The default is a network of 200 Gbit/s."""
    latency_s: float = 0.001


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a pool is operated, and what befalls it."""

    changes: tuple[ReplicaChange, ...] = ()
    """What happens to replicas, in order of time."""
    patience_s: float | None = None
    """Clients leave after so long without a first token; None: they wait for ever."""
    priority_preemption: bool = False
    """Whether waiting requests of a higher class preempt what runs, where slots or memory are short.
    False is vLLM's `--scheduling-policy priority`: order in the queue and choice of whom to preempt."""
    priority_scheduling: bool = True
    """Whether engines look at priorities at all; False is vLLM's default, `--scheduling-policy fcfs`."""
    adapters: Adapters | None = None
    """None: adapters cost nothing."""
    sharing: tuple[SharedGpu, ...] = ()
    disaggregation: Disaggregation | None = None
    """None: every replica does both."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Sessions laid over the single requests of a trace, so that prompts share prefixes.

    Each request becomes a turn of a conversation that begins with one of a few system prompts.
    """

    system_prompts: int = 12
    """How many different ones; the k-th most popular begins a share of conversations in 1/k."""
    system_tokens: int = 1024
    turns: float = 4.0
    """Mean number of turns (geometric)."""
    think_time_s: float = 15.0
    """Mean time from an answer to the next turn (exponential)."""
    block_tokens: int = 64
    """Tokens per prefix block."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Cluster + trace + load + staleness: everything but the policy and the seed."""

    name: str
    replicas: tuple[ReplicaSpec, ...]
    trace: str
    """Path of a trace, or the name of a bundled one."""
    load: float
    """Arrival rate over the cluster's saturation rate; 1 is saturation."""
    staleness: Staleness = field(default_factory=Staleness)
    prefix_cache: bool = True
    conversations: Conversations | None = None
    """None: the trace as it is."""
    saturation_rps: float | None = None
    """Measured saturation on all of the traffic; None until measured."""
    split_saturation_rps: Mapping[str, float] = field(default_factory=dict)
    """The same on the traffic of a split, where that was measured: its requests may be heavier."""
    split_traces: Mapping[str, str] = field(default_factory=dict)
    """Traces of the splits, where they are recordings of their own (days); none: parts of `trace`."""
    conditions: Conditions = field(default_factory=Conditions)
