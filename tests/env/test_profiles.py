from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.profiles import (
    MEMORY_RESERVE,
    check_profile,
    load_model,
    load_profile,
    profile_names,
    with_limits,
)
from steersman.traces.errors import ConfigError
from steersman.traces.settings import CONFIG_ROOT
from tests.env.worlds import play, request, small_profile, specs, trace_of

GOOD = (CONFIG_ROOT / "hardware" / "a100-llama-3.1-8b.yaml").read_text()


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_that_ships_is_sound(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert name.endswith(profile.model.name)
    assert profile.source
    kv_gib = profile.kv_capacity_tokens * profile.model.kv_bytes_per_token / 1024**3
    usable_gib = profile.gpu_memory_gib * (1 - MEMORY_RESERVE)
    assert profile.model.weights_gib + kv_gib <= usable_gib
    # Seconds, not milliseconds: a lone decode step is 3 to 60 ms, a 1 000-token prefill 10 ms to 1.5 s.
    assert 0.003 <= profile.decode_base_s + profile.host_overhead_s <= 0.06
    prefill_s = profile.prefill_base_s + 1000 * profile.prefill_token_s
    assert 0.01 <= prefill_s <= 1.5


def test_newer_gpus_are_faster() -> None:
    a100, h100, h200, l40s = (
        load_profile(f"{gpu}-llama-3.1-8b") for gpu in ("a100", "h100", "h200", "l40s")
    )
    assert h200.decode_base_s < h100.decode_base_s < a100.decode_base_s < l40s.decode_base_s
    assert a100.hardware_factor == 0.7
    assert h100.hardware_factor == 1.0


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(GOOD.replace("model: llama-3.1-8b", "model: llama-3.1-70b"))
    with pytest.raises(
        ConfigError, match=r"llama-3.1-70b does not fit: weights of 131\.5 GiB exceed 70\.8"
    ):
        load_profile(str(path))


def test_a_kv_cache_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(ConfigError, match="at most 45"):
        check_profile(small_profile(kv_capacity_tokens=600_000), source="test")


def test_a_kv_cache_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than one block"):
        check_profile(small_profile(kv_capacity_tokens=8), source="test")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("decode_base_s: 0.0115314", "decode_base_s: 11.5", "'decode_base_s' = 11.5"),
        ("block_tokens: 16", "block_token: 16", "did you mean 'block_tokens'"),
        ("tensor_parallel: 1", "tensor_parallel: 0", "'tensor_parallel' = 0"),
        ("gpu: a100-80gb", "", "missing key 'gpu'"),
        ("decode_seq_s: 6.89471e-05", "decode_seq_s: .nan", "'decode_seq_s' = nan"),
        ("decode_base_s: 0.0115314", "decode_base_s: .inf", "'decode_base_s' = inf"),
        ("kv_capacity_tokens: 415344", "kv_capacity_tokens: -1", "'kv_capacity_tokens' = -1"),
        ("kv_capacity_tokens: 415344", "kv_capacity_tokens: 1.5", "'kv_capacity_tokens' = 1.5"),
        ("prefill_token_s: 6.32279e-05", "prefill_token_s:", "'prefill_token_s' = None"),
        ("prefill_token_s: 6.32279e-05", "prefill_token_s: fast", "'prefill_token_s' = 'fast'"),
        ("max_num_seqs: 256", "max_num_seqs: 0", "'max_num_seqs' = 0"),
        ("max_batched_tokens: 2048", "max_batched_tokens: 8", "max_batched_tokens = 8 is less than"),
        ("block_tokens: 16", "decode_base_by_batch_s: [[2, 0.02], [1, 0.03]]", "sequences must rise"),
        ("block_tokens: 16", "decode_base_by_batch_s: [[1, 0.02], [2, 0.01]]", "times must not fall"),
        ("block_tokens: 16", "decode_base_by_batch_s: [[0, 0.02]]", "at least 1 sequence"),
        ("block_tokens: 16", "decode_base_by_batch_s: [[1, .nan]]", "should be a finite number"),
        ("block_tokens: 16", "decode_base_by_batch_s: [[1, 11.0]]", "0 to 10 seconds"),
        (
            "gpu_memory_gib: 74.5",
            "gpu_memory_gib: .inf",
            "'gpu_memory_gib' = inf: Input should be a fin",
        ),
        ("cost_per_hour: 1.80", "cost_per_hour: .inf", "'cost_per_hour' = inf"),
        ("host_overhead_s: 0.00125", "host_overhead_s: -0.001", "'host_overhead_s' = -0.001"),
        ("source: ", "source: [", "not valid YAML"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message) as refused:
        load_profile(str(path))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_shipped_profiles_are_those_that_the_kernel_times_give() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "profiles.py"
    run = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_experts_are_read_as_sequences_ask_for_them() -> None:
    for name in profile_names():
        profile = load_profile(name)
        assert bool(profile.decode_base_by_batch_s) == (profile.model.name == "mixtral-8x7b"), name
    mixtral = load_profile("h100-tp2-mixtral-8x7b")
    trace = trace_of(*(request(i, 0.0, 16, 400) for i in range(64)))

    def tpot_s(count: int, **changes: Any) -> float:
        profile = replace(mixtral, **changes)
        cluster = Cluster(specs(profile), trace.select(np.arange(count)), prefix_cache=False)
        play(cluster)
        return float(cluster.outcomes().tpot_s.mean())

    assert tpot_s(1) < 0.011
    assert tpot_s(32) > 0.02
    assert tpot_s(1, decode_base_by_batch_s=()) > 0.8 * tpot_s(32, decode_base_by_batch_s=())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weights_gib: 14.96", "weights_gib: 0", "'weights_gib' = 0"),
        ("weights_gib: 14.96  # 16.06 GB at two bytes a parameter\n", "", "missing key 'weights_gib'"),
        ("parameters_b: 8.03", "parameters_b: .nan", "'parameters_b' = nan"),
        ("kv_bytes_per_token: 131072", "kv_bytes_per_token: 0", "'kv_bytes_per_token' = 0"),
        ("context_window_tokens: 131072", "context_window_tokens: -5", "'context_window_tokens' = -5"),
    ],
)
def test_a_model_with_impossible_numbers_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    model = tmp_path / "model.yaml"
    text = (CONFIG_ROOT / "models" / "llama-3.1-8b.yaml").read_text()
    assert old in text
    model.write_text(text.replace(old, new))
    path = tmp_path / "profile.yaml"
    path.write_text(GOOD.replace("model: llama-3.1-8b", f"model: {model}"))
    with pytest.raises(ConfigError, match=message) as refused:
        load_profile(str(path))
    assert "\n" not in str(refused.value)


def test_an_unknown_name_gets_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'a100-llama-3\.1-8b'"):
        load_profile("a100-lama-3.1-8b")
    with pytest.raises(ConfigError, match="unknown model 'gpt'"):
        load_model("gpt")


def test_limits_can_be_overridden() -> None:
    profile = with_limits(load_profile("a100-llama-3.1-8b"), max_num_seqs=7, max_batched_tokens=None)
    assert profile.max_num_seqs == 7
    assert profile.max_batched_tokens == 2048
