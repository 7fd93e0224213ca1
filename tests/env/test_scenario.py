from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.env.profiles import load_profile
from steersman.env.saturation import SaturationEstimate, measure_saturation, with_traffic
from steersman.env.scenario import (
    for_split,
    load_scenario,
    load_source,
    make_trace,
    saturation_of,
    scenario_names,
    with_classes,
)
from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Priority
from steersman.traces.settings import CONFIG_ROOT
from tests.env.worlds import request, trace_of

GOOD = (CONFIG_ROOT / "clusters" / "tiny.yaml").read_text()


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_that_ships_can_be_run(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.saturation_rps is not None
    assert len({spec.replica_id for spec in scenario.replicas}) == len(scenario.replicas)
    trace = make_trace(scenario, 1, duration_s=60.0)
    rate = scenario.load * scenario.saturation_rps
    assert len(trace) == round(60.0 * rate)
    uncached = replace(scenario, conversations=None)
    source = load_source(uncached)
    estimate = SaturationEstimate(source).of(scenario.replicas)
    if scenario.conversations is None:
        # How many prefixes that were seen before are still cached can only be guessed.
        least, most = (0.5, 1.5) if len(source.block_hashes) else (0.8, 1.2)
        assert least * estimate < scenario.saturation_rps < most * estimate


def test_the_demo_is_slow_enough_for_real_time() -> None:
    saturation_rps = load_scenario("demo").saturation_rps
    assert saturation_rps is not None
    assert 10 <= saturation_rps <= 14


def test_saturation_is_measured_as_stored() -> None:
    scenario = load_scenario("tiny")
    assert scenario.saturation_rps is not None
    measured = measure_saturation(scenario)
    assert measured == pytest.approx(scenario.saturation_rps, rel=0.1)
    with pytest.raises(ValueError, match="at least"):
        measure_saturation(scenario, requests=100)


def test_other_traffic_has_another_saturation(tmp_path: Path) -> None:
    scenario = load_scenario("tiny")
    assert with_traffic(scenario) is scenario
    assert with_traffic(scenario, scenario.trace) is scenario
    rows = "\n".join(f"{i},20,{1 + i % 3}" for i in range(200))
    path = tmp_path / "short.csv"
    path.write_text(f"t_s,input_tokens,output_tokens\n{rows}\n")
    other = with_traffic(scenario, str(path))
    assert other.trace == str(path)
    assert other.saturation_rps is not None
    assert scenario.saturation_rps is not None
    assert other.saturation_rps > 5 * scenario.saturation_rps


def test_estimates_grow_with_replicas_and_speed() -> None:
    trace = load_source(load_scenario("mixed"))
    fast, slow = (ReplicaSpec(name, load_profile(f"{name}-llama-3.1-8b")) for name in ("h100", "l40s"))
    of = SaturationEstimate(trace).of
    assert of([fast]) > 1.5 * of([slow])
    assert of([fast, slow]) == pytest.approx(of([fast]) + of([slow]))
    assert of([replace(fast, slowdown=2.0)]) == pytest.approx(0.5 * of([fast]))


def test_a_measured_saturation_corrects_the_estimates_of_every_pool() -> None:
    scenario = load_scenario("mixed")
    trace, part = load_source(scenario), scenario.replicas[:2]
    plain = SaturationEstimate(trace).of
    unmeasured = SaturationEstimate(trace, replace(scenario, saturation_rps=None)).of
    assert unmeasured(part) == plain(part)
    measured = replace(scenario, saturation_rps=0.5 * plain(scenario.replicas))
    corrected = SaturationEstimate(trace, measured).of
    assert corrected(scenario.replicas) == pytest.approx(0.5 * plain(scenario.replicas))
    assert corrected(part) == pytest.approx(0.5 * plain(part))


def test_the_same_seed_makes_the_same_trace_and_splits_differ() -> None:
    scenario = load_scenario("tiny")
    one, two = (make_trace(scenario, 3, duration_s=60.0, split="train") for _ in range(2))
    assert one.fingerprint() == two.fingerprint()
    held_out = make_trace(scenario, 3, duration_s=60.0, split="evaluation")
    assert held_out.fingerprint() != one.fingerprint()
    train, tune, evaluation = (load_source(scenario, s) for s in ("train", "tune", "evaluation"))
    whole = load_source(scenario)
    assert len(train) + len(tune) + len(evaluation) == len(whole)
    assert not set(train.request_ids) & set(evaluation.request_ids)


def test_a_quarter_of_a_trace_without_classes_is_batch() -> None:
    trace = load_source(load_scenario("tiny"))
    assert np.mean(trace.priority == Priority.BATCH) == pytest.approx(0.25, abs=0.02)
    assert set(trace.priority.tolist()) == {Priority.INTERACTIVE, Priority.BATCH}


def test_classes_that_a_trace_has_are_kept() -> None:
    trace = trace_of(request(0, 0.0, 5, 5, priority=Priority.BACKGROUND), request(1, 1.0, 5, 5))
    assert with_classes(trace) is trace


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prefix_cache", "prefix_cash", "did you mean 'prefix_cache'"),
        ("load: 0.8", "load: -1", "'load' = -1"),
        ("jitter: 0.1", "jitter: 1.5", "'staleness.jitter' = 1.5"),
        ("a100-llama-3.1-8b", "b200-llama-3.1-8b", "unknown hardware profile"),
        ("l40s-llama-3.1-8b", "l40s-qwen2.5-7b", "a pool serves one model"),
        ("count: 1", "count: 0", "'replicas.0.count' = 0"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_scenario(path)


def test_unknown_scenarios_and_unknown_saturations_are_errors() -> None:
    with pytest.raises(ConfigError, match="did you mean 'homogeneous'"):
        load_scenario("homogenous")
    with pytest.raises(ConfigError, match="no such file"):
        load_scenario("nowhere.yaml")
    with pytest.raises(ConfigError, match="saturation_rps"):
        make_trace(replace(load_scenario("tiny"), saturation_rps=None), 0)


def test_conditions_are_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        GOOD
        + "patience_s: 2.5\npriority_preemption: true\n"
        + "adapters: {most: 3}\n"
        + "events: [{at_s: 9, replica: 1, kind: slow, factor: 2}, {at_s: 3, replica: 0, kind: fail}]\n"
    )
    scenario = load_scenario(path)
    conditions = scenario.conditions
    assert [(c.at_s, c.replica, c.kind.value) for c in conditions.changes] == [
        (3, 0, "fail"),
        (9, 1, "slow"),
    ]
    assert (conditions.patience_s, conditions.priority_preemption) == (2.5, True)
    assert conditions.adapters is not None
    assert conditions.adapters.most == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("events: [{at_s: 1, replica: 9, kind: fail}]\n", "replica = 9 is not in"),
        ("events: [{at_s: 1, replica: 0, kind: explode}]\n", "events.0.kind"),
        ("sharing: [{replicas: [0, 1]}]\n", "replicas that share are on the same"),
        ("sharing: [{replicas: [0, 1], slice_ms: 80}]\n", "slice_ms"),
        ("adapters: {mots: 1}\n", "did you mean 'most'"),
    ],
)
def test_wrong_conditions_are_refused_when_the_file_is_read(
    tmp_path: Path, more: str, said: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD + more)
    with pytest.raises(ConfigError, match=said):
        load_scenario(path)


def test_standby_replicas_and_shares_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    group = "\nreplicas: [{profile: a100-llama-3.1-8b, count: 2, kv_capacity_tokens: 100000, "
    head, _, rest = GOOD.partition("\nreplicas:")
    rest = rest[rest.index("\ntrace:") :]
    path.write_text(head + group + "standby: true, cold_start: sleep-level-1}]" + rest)
    specs = load_scenario(path).replicas
    assert {(s.standby, s.cold_start_s, s.profile.kv_capacity_tokens) for s in specs} == {
        (True, 0.82, 100_000)
    }
    path.write_text(head + group + "cold_start: sleep-level-7}]" + rest)
    with pytest.raises(ConfigError, match="did you mean 'sleep-level-"):
        load_scenario(path)
    path.write_text(head + group.replace("100000", "90000000") + "count: 1}]" + rest)
    with pytest.raises(ConfigError):
        load_scenario(path)


def test_a_trace_beyond_the_window_is_refused_before_anything_runs() -> None:
    scenario = load_scenario("tiny")
    spec = scenario.replicas[0]
    model = replace(spec.profile.model, context_window_tokens=1000)
    short = replace(spec, profile=replace(spec.profile, model=model))
    with pytest.raises(TraceError, match="exceed the context window of 1000 tokens"):
        load_source(replace(scenario, replicas=(short,)))


def test_a_split_has_its_own_saturation_where_it_was_measured() -> None:
    plain = load_scenario("tiny")
    assert saturation_of(plain, "tune") == plain.saturation_rps
    own = replace(plain, split_saturation_rps={"tune": 20.0})
    assert saturation_of(own, "tune") == for_split(own, "tune").saturation_rps == 20.0
    assert saturation_of(own, "evaluation") == saturation_of(own) == plain.saturation_rps
    assert len(make_trace(own, 0, duration_s=60.0, load=0.5, split="tune")) == 600
    # Another trace has none of these.
    assert with_traffic(own, "azure-chat", "tune") is own


def test_tenants_have_a_day_for_each_purpose() -> None:
    scenario = load_scenario("tenants")
    train, tune, evaluation = (load_source(scenario, s) for s in ("train", "tune", "evaluation"))
    assert len({len(train), len(tune), len(evaluation)}) == 3
    assert min(len(train.tenants), len(tune.tenants), len(evaluation.tenants)) > 50
    assert evaluation.input_tokens.mean() > 1.5 * train.input_tokens.mean()
    hours = np.unique(train.hour_of_day.astype(int))
    assert hours.tolist() == [0, 4, 8, 12, 16, 20]


def test_agents_of_both_kinds_are_in_every_split_with_whole_sessions() -> None:
    scenario = load_scenario("agents")
    seen: set[str] = set()
    for split in ("train", "tune", "evaluation"):
        part = load_source(scenario, split)
        assert {part.tenants[code] for code in np.unique(part.tenant)} == {"magagent", "miniswe"}
        sessions = {part.sessions[code] for code in np.unique(part.session)}
        assert not sessions & seen
        seen |= sessions
    assert len(seen) == 45


def test_long_prompts_share_their_beginnings() -> None:
    source = load_source(load_scenario("long"))
    assert np.quantile(source.input_tokens, 0.99) > 80_000
    distinct = len(np.unique(source.block_hashes))
    assert distinct < 0.7 * len(source.block_hashes)
    stream = make_trace(load_scenario("long"), 0, duration_s=120.0, split="evaluation")
    assert (stream.parent >= 0).mean() > 0.05
