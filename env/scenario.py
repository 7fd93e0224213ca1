"""Scenarios: cluster, trace, load and staleness from one YAML file of `configs/clusters/`."""

from __future__ import annotations

import difflib
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field

from steersman.env.conditions import (
    AdapterSettings,
    DisaggregationSettings,
    EventSettings,
    SharingSettings,
    cold_start_s,
    conditions,
)
from steersman.env.conversations import with_conversations
from steersman.env.lifecycle import schedule
from steersman.env.placement import check_roles, check_sharing, check_window
from steersman.env.profiles import load_profile, with_limits
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.readers import load_trace
from steersman.traces.scenario import Conversations, ReplicaSpec, Scenario, Staleness
from steersman.traces.schema import Batching, Priority
from steersman.traces.settings import CONFIG_ROOT, Settings, load_settings
from steersman.traces.trace import Trace

Split = Literal["train", "tune", "evaluation", "all"]
SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_FRACTIONS = (0.6, 0.15, 0.25)
"""Training, tuning and evaluation shares of a trace, by time (EVALUATION, "Cells")."""


class ReplicaGroup(Settings):
    """Identical replicas."""

    profile: str = Field(description="Name of a file in configs/hardware, or the path of one.")
    count: int = Field(default=1, ge=1, le=4096, description="How many of them.")
    slowdown: float = Field(default=1.0, gt=0, description="Factor on iteration times; 1 is healthy.")
    max_num_seqs: int | None = Field(default=None, ge=1, description="Overrides the profile's.")
    max_batched_tokens: int | None = Field(default=None, ge=1, description="Overrides the profile's.")
    batching: Batching | None = Field(default=None, description="Overrides the profile's.")
    kv_capacity_tokens: int | None = Field(
        default=None, ge=1, description="Overrides the profile's, on a part of a GPU."
    )
    standby: bool = Field(default=False, description="Not there until it is started.")
    cold_start: str | Annotated[float, Field(ge=0)] = Field(
        default="vllm-pod", description="Entry of configs/cold_starts.yaml, or seconds."
    )


class StalenessSettings(Settings):
    """How old the router's view of the engines' metrics is."""

    scrape_interval_s: float = Field(default=0.2, gt=0, description="Between scrapes of a replica.")
    jitter: float = Field(default=0.1, ge=0, lt=1, description="Intervals vary by this share.")
    loss: float = Field(default=0.0, ge=0, le=1, description="Share of scrapes that fail.")


class ConversationSettings(Settings):
    """Sessions laid over a trace without any: see `conversations.py`."""

    system_prompts: int = Field(default=12, ge=1, description="Different ones, popularity 1/rank.")
    system_tokens: int = Field(default=1024, ge=0, description="Length of a system prompt.")
    turns: float = Field(default=4.0, ge=1, description="Mean turns of a conversation.")
    think_time_s: float = Field(default=15.0, ge=0, description="Mean time between answer and turn.")
    block_tokens: int = Field(default=64, ge=1, description="Tokens per prefix block.")


class SplitTraceSettings(Settings):
    """A trace for each purpose."""

    train: str = Field(description="Trace that training sees.")
    tune: str = Field(description="Trace that constants are tuned on.")
    evaluation: str = Field(description="Trace that policies are judged on.")


class SplitSaturationSettings(Settings):
    """Saturation on the traffic of each split."""

    train: float = Field(gt=0, description="On the training part.")
    tune: float = Field(gt=0, description="On the tuning part.")
    evaluation: float = Field(gt=0, description="On the evaluation part.")


class ScenarioSettings(Settings):
    """One file of `configs/clusters/`."""

    name: str = Field(min_length=1, description="Name in reports.")
    replicas: list[ReplicaGroup] = Field(min_length=1, description="The pool, all of one model.")
    trace: str = Field(description="Name of a bundled trace, or the path of one.")
    load: float = Field(default=0.8, gt=0, description="Arrival rate over saturation_rps.")
    staleness: StalenessSettings = Field(
        default_factory=StalenessSettings, description="How old the router's view is."
    )
    prefix_cache: bool = Field(default=True, description="Whether engines cache prompt prefixes.")
    conversations: ConversationSettings | None = Field(
        default=None, description="Sessions to lay over the trace; none: as it is."
    )
    patience_s: float | None = Field(
        default=None, gt=0, description="Clients leave after so long without a first token; none: never."
    )
    priority_preemption: bool = Field(
        default=False, description="Waiting requests preempt what runs of lower classes."
    )
    priority_scheduling: bool = Field(
        default=True,
        description="Whether engines look at priorities at all (vLLM's --scheduling-policy priority).",
    )
    events: list[EventSettings] = Field(default=[], description="What happens to replicas, and when.")
    adapters: AdapterSettings | None = Field(
        default=None, description="What LoRA adapters cost; none: nothing."
    )
    sharing: list[SharingSettings] = Field(default=[], description="Replicas that share a GPU.")
    disaggregation: DisaggregationSettings | None = Field(
        default=None, description="Prefill and decode on different replicas; none: together."
    )
    saturation_rps: float | None = Field(
        default=None, gt=0, description="Requests per second at saturation; none: measured when needed."
    )
    split_traces: SplitTraceSettings | None = Field(
        default=None, description="Traces of the splits; none: parts of the trace, by time."
    )
    split_saturation_rps: SplitSaturationSettings | None = Field(
        default=None,
        description="Saturation on the traffic of each split; none: saturation_rps for all.",
    )


def load_scenario(path_or_name: str | Path) -> Scenario:
    """A scenario of `configs/clusters/` by name, or from the path of a YAML file.

    Raises:
        ConfigError: unknown name, or a key of the file is wrong.
    """
    path = _resolve(str(path_or_name))
    settings = load_settings(path, ScenarioSettings)
    replicas = tuple(_specs(settings))
    models = sorted({spec.profile.model.name for spec in replicas})
    if len(models) > 1:
        raise ConfigError(
            f"{path}: 'replicas' mix the models {', '.join(models)}; a pool serves one model"
        )
    operated = conditions(
        events=settings.events,
        patience_s=settings.patience_s,
        priority_preemption=settings.priority_preemption,
        priority_scheduling=settings.priority_scheduling,
        adapters=settings.adapters,
        sharing=settings.sharing,
        disaggregation=settings.disaggregation,
    )
    try:
        schedule(operated.changes, len(replicas))
        check_sharing(replicas, operated.sharing)
        if operated.disaggregation is not None:
            check_roles(replicas, operated.disaggregation)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    overlay = settings.conversations
    conversations = None if overlay is None else Conversations(**overlay.model_dump())
    return Scenario(
        name=settings.name,
        replicas=replicas,
        trace=settings.trace,
        load=settings.load,
        staleness=Staleness(**settings.staleness.model_dump()),
        prefix_cache=settings.prefix_cache,
        conversations=conversations,
        saturation_rps=settings.saturation_rps,
        split_saturation_rps=_dumped(settings.split_saturation_rps),
        split_traces=_dumped(settings.split_traces),
        conditions=operated,
    )


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that ship with Steersman."""
    return tuple(sorted(path.stem for path in (CONFIG_ROOT / "clusters").glob("*.yaml")))


def for_split(scenario: Scenario, split: Split) -> Scenario:
    """The scenario with the split's saturation as its own.

    Saturation is of a mix of requests. Where a split's are heavier than all together, a load that is
    reckoned by the whole would be another load there.
    """
    saturation_rps = scenario.split_saturation_rps.get(split, scenario.saturation_rps)
    return replace(scenario, saturation_rps=saturation_rps)


def saturation_of(scenario: Scenario, split: Split = "all") -> float:
    """Requests per second at saturation, on a split's traffic.

    Raises:
        ConfigError: the scenario has none.
    """
    saturation_rps = for_split(scenario, split).saturation_rps
    if saturation_rps is None:
        raise ConfigError(
            f"scenario '{scenario.name}': 'saturation_rps' is not set; "
            "add what `steersman evaluate saturation` measures"
        )
    return saturation_rps


def load_source(scenario: Scenario, split: Split = "all") -> Trace:
    """The scenario's trace, or the part of it (by time) that a purpose may use, with classes.

    Raises:
        TraceError: a request is longer than the model's context window.
    """
    own = scenario.split_traces.get(split)
    trace = load_trace(scenario.trace if own is None else own)
    if scenario.conversations is not None:
        trace = with_conversations(trace, scenario.conversations)
    check_window(scenario.replicas, trace)
    if split != "all" and own is None:
        part = ("train", "tune", "evaluation").index(split)
        trace = trace.split(SPLIT_FRACTIONS)[part]
    return with_classes(trace)


def make_trace(
    scenario: Scenario,
    seed: int,
    *,
    duration_s: float = 720.0,
    load: float | None = None,
    split: Split = "all",
    source: Trace | None = None,
) -> Trace:
    """Arrivals for one run: blocks of the scenario's trace, resampled to the wanted load.

    Args:
        seed: of the block bootstrap.
        duration_s: length of the arrivals.
        load: overrides the scenario's.
        split: which part of the trace to draw from, and whose saturation counts.
        source: `load_source(scenario, split)`, where many traces are drawn from it.

    Raises:
        ConfigError: the scenario has no `saturation_rps`.
    """
    rate_rps = (scenario.load if load is None else load) * saturation_of(scenario, split)
    if source is None:
        source = load_source(scenario, split)
    return block_bootstrap(source, rate_rps=rate_rps, duration_s=duration_s, seed=seed)


def with_classes(trace: Trace) -> Trace:
    """Where a trace has no classes, a quarter of its requests are P2, by a hash of the request id."""
    if len(trace) == 0 or np.any(trace.priority != Priority.INTERACTIVE):
        return trace
    is_batch = np.array([zlib.crc32(request_id.encode()) % 4 == 0 for request_id in trace.request_ids])
    return replace(
        trace, priority=np.where(is_batch, Priority.BATCH, Priority.INTERACTIVE).astype(np.int8)
    )


def _dumped(settings: Settings | None) -> dict[str, Any]:
    return {} if settings is None else settings.model_dump()


def _specs(settings: ScenarioSettings) -> list[ReplicaSpec]:
    specs: list[ReplicaSpec] = []
    for group in settings.replicas:
        profile = with_limits(
            load_profile(group.profile),
            max_num_seqs=group.max_num_seqs,
            max_batched_tokens=group.max_batched_tokens,
            batching=group.batching,
            kv_capacity_tokens=group.kv_capacity_tokens,
        )
        delay_s = cold_start_s(group.cold_start)
        for _ in range(group.count):
            name = f"{profile.gpu}-{len(specs)}"
            specs.append(ReplicaSpec(name, profile, group.slowdown, group.standby, delay_s))
    return specs


def _resolve(path_or_name: str) -> Path:
    if path_or_name.endswith((".yaml", ".yml")):
        return Path(path_or_name)
    path = CONFIG_ROOT / "clusters" / f"{path_or_name}.yaml"
    if path.is_file():
        return path
    known = scenario_names()
    close = difflib.get_close_matches(path_or_name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"unknown scenario '{path_or_name}'; {hint}, or give the path of a YAML file")
