"""Metrics pages of engines, as they are and as they should not be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.engine_dialects import DIALECTS, VLLM
from steersman.env.engine_metrics import MAX_PAGE_BYTES, EngineMetrics, parse_metrics
from steersman.traces.errors import BackendError

VLLM_V1 = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b\\"c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",num_gpu_blocks_override="9"} 1.0
"""

VLLM_V0 = b"""\
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""

SGLANG_PAGE = b"""\
sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
"""

SGLANG_RANKS = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="0",priority="3",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="0",priority="",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",model_name="m",pp_rank="0",priority="",tp_rank="2"} 1.0
sglang:num_running_reqs_offline_batch{dp_rank="0",model_name="m"} 99.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",priority="",tp_rank="2"} 0.0
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="1"} 0.5
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="2"} 0.1
sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="0"} 471258.0
sglang:max_total_num_tokens{dp_rank="1",model_name="m",tp_rank="2"} 471258.0
sglang:num_retracted_requests_total{dp_rank="0",model_name="m",tp_rank="0"} 6.0
"""

VLLM_LORA = b"""\
vllm:num_requests_running 2
vllm:num_requests_waiting 0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old"} 1.71e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, french"} 1.72e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="older"} 1.7e+09
"""

TRTLLM_SERVE_PAGE = b"""\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 2.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.125
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
"""

TRTLLM_PAGE = b"""\
trtllm_num_requests_running{model_name="m"} 2
trtllm_num_requests_waiting{model_name="m"} 1
trtllm_kv_cache_utilization{model_name="m"} 0.125
"""

TRITON_PAGE = b"""\
nv_trt_llm_request_metrics{model="t",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="t",request_type="active",version="1"} 6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="t",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="t",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="t",version="1"} 900
"""

TGI_PAGE = b"tgi_queue_size 3\ntgi_batch_current_size 8\ntgi_batch_current_max_tokens 9000\n"

LLAMA_CPP_PAGE = b"""\
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:n_busy_slots_per_decode 1.5
"""


def test_vllm_sums_over_data_parallel_ranks() -> None:
    assert parse_metrics(VLLM_V1) == EngineMetrics(
        dialect="vllm",
        running=7.0,
        waiting=3.0,
        kv_usage=0.5,
        kv_capacity_tokens=16_000.0,
        prefix_queries=1000.0,
        prefix_hits=400.0,
        preemptions=5.0,
    )


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (VLLM_V0, EngineMetrics("vllm", 3.0, 0.0, 0.5)),
        (SGLANG_PAGE, EngineMetrics("sglang", 7.0, 2.0, 0.28)),
        (TRTLLM_PAGE, EngineMetrics("tensorrt-llm", 2.0, 1.0, 0.125)),
        (TRTLLM_SERVE_PAGE, EngineMetrics("tensorrt-llm", 2.0, 1.0, 0.125, 32_000.0)),
        (TRITON_PAGE, EngineMetrics("triton", 4.0, 2.0, 0.5, 57_600.0)),
        (TGI_PAGE, EngineMetrics("tgi", 8.0, 3.0, 0.0)),
        (LLAMA_CPP_PAGE, EngineMetrics("llama.cpp", 2.0, 1.0, 0.0)),
    ],
)
def test_dialects_are_recognised(page: bytes, expected: EngineMetrics) -> None:
    assert parse_metrics(page) == expected
    assert parse_metrics(page.replace(b"\n", b"\r\n")) == expected


def test_sglang_counts_each_data_parallel_rank_once_and_no_priority_twice() -> None:
    read = parse_metrics(SGLANG_RANKS)
    assert (read.dialect, read.running, read.waiting) == ("sglang", 6.0, 2.0)
    assert read.kv_usage == pytest.approx(0.3)
    assert (read.kv_capacity_tokens, read.preemptions) == (942_516.0, 6.0)


def test_sglang_tells_cached_tokens_by_their_source() -> None:
    page = SGLANG_PAGE + (
        b'sglang:prompt_tokens_total{is_streaming="true",model_name="m",tp_rank="0"} 900.0\n'
        b'sglang:prompt_tokens_total{is_streaming="false",model_name="m",tp_rank="0"} 100.0\n'
        b'sglang:prompt_tokens_total{is_streaming="true",model_name="m",tp_rank="1"} 900.0\n'
        b'sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0\n'
        b'sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0\n'
    )
    read = parse_metrics(page)
    assert (read.prefix_queries, read.prefix_hits) == (1000.0, 350.0)


def test_prompt_tokens_alone_do_not_say_that_nothing_is_cached() -> None:
    read = parse_metrics(SGLANG_PAGE + b'sglang:prompt_tokens_total{model_name="m"} 900.0\n')
    assert (read.prefix_queries, read.prefix_hits) == (None, None)


def test_tensorrt_llm_tells_cached_tokens() -> None:
    counted = b"trtllm_prompt_tokens_total 900\ntrtllm_prompt_cached_tokens_total 300\n"
    read = parse_metrics(TRTLLM_SERVE_PAGE + counted)
    assert (read.prefix_queries, read.prefix_hits) == (900.0, 300.0)


def test_the_last_written_list_of_adapters_counts() -> None:
    assert parse_metrics(VLLM_LORA).adapters == {"sql", "french"}
    assert parse_metrics(VLLM_V1).adapters == frozenset()


def test_new_name_wins_where_an_engine_shows_both() -> None:
    both = VLLM_V0 + b'vllm:kv_cache_usage_perc{model_name="m"} 0.9\n'
    assert parse_metrics(both).kv_usage == 0.9


def test_nan_counts_as_not_told() -> None:
    page = b"vllm:num_requests_running 2\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc nan\n"
    assert parse_metrics(page) == EngineMetrics("vllm", 2.0, 0.0, 0.0)


def test_timestamps_and_exemplars_do_no_harm() -> None:
    page = b'vllm:num_requests_running{a="b"} 2 1712345678000 # {trace_id="x"} 1\n'
    assert parse_metrics(page).running == 2.0


@pytest.mark.parametrize(
    "page", [b"", b"<html>login</html>", b"go_goroutines 7\n", b"\x00\xff\xfe" * 50]
)
def test_other_pages_are_refused_with_a_reason(page: bytes) -> None:
    with pytest.raises(BackendError, match="vllm:num_requests_running"):
        parse_metrics(page)


@pytest.mark.parametrize("value", [b"lots", b"-1", b"+Inf", b"1e400"])
def test_rubbish_numbers_are_refused(value: bytes) -> None:
    with pytest.raises(BackendError, match="num_requests_running"):
        parse_metrics(b"vllm:num_requests_running " + value + b"\n")


def test_page_size_is_bounded() -> None:
    with pytest.raises(BackendError, match="above the limit"):
        parse_metrics(b"#" * (MAX_PAGE_BYTES + 1))


def test_names_are_told_apart_between_dialects() -> None:
    running = [metric.name for dialect in DIALECTS for metric in dialect.running]
    assert len(running) == len(set(running))
    assert VLLM.kv_usage[0].name == "vllm:kv_cache_usage_perc"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tail: bytes) -> None:
    """Whatever follows, the parser answers sanely or says BackendError; it never crashes."""
    try:
        metrics = parse_metrics(b"vllm:num_requests_running 1\nvllm:num_requests_waiting" + tail)
    except BackendError:
        return
    assert math.isfinite(metrics.running)
    assert math.isfinite(metrics.waiting)
    assert 0.0 <= metrics.kv_usage <= 1.0
