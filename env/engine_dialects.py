"""The names of inference engines' metrics, one table per engine ("dialect"), newest name first.

An engine that renames a metric costs one line here. The scraper reads with these tables
(`env/engine_metrics.py`) and the emulated backend writes with them.

Names are taken from the engines' own documentation and sources: vLLM (v0 and v1), SGLang, TensorRT-LLM
(`trtllm-serve`, on `/prometheus/metrics`) and its Triton backend, Text Generation Inference, llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One name on the page, optionally one value of one label."""

    name: str
    label: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where an engine tells what. Each field lists alternatives, the newest first."""

    name: str
    running: tuple[Metric, ...]
    waiting: tuple[Metric, ...]
    kv_usage: tuple[Metric, ...] = ()
    """Fraction of KV memory in use, 0 to 1 (vLLM's `_perc` too)."""
    prefix_queries: tuple[Metric, ...] = ()
    """Counter of prompt tokens, each looked up in the prefix cache; `prefix_hits` of those found."""
    prefix_hits: tuple[Metric, ...] = ()
    preemptions: tuple[Metric, ...] = ()
    cache_config: tuple[Metric, ...] = ()
    """Info metric whose labels `block_size` and `num_gpu_blocks` give the KV capacity."""
    ttft: tuple[Metric, ...] = ()
    """Histogram, seconds; so are the three below. Read by people, written by the emulator."""
    inter_token: tuple[Metric, ...] = ()
    e2e: tuple[Metric, ...] = ()
    queue_time: tuple[Metric, ...] = ()
    kv_capacity: tuple[Metric, ...] = ()
    """Gauge of tokens the KV memory holds."""
    kv_blocks: tuple[Metric, ...] = ()
    """Gauge of blocks it holds; `kv_block_tokens` tells how many tokens each has."""
    kv_block_tokens: tuple[Metric, ...] = ()
    lora: tuple[Metric, ...] = ()
    """Info metric whose label `running_lora_adapters` lists what is in the accelerator's memory; its
    value is the time it was written."""
    rank: str = ""
    """Label that tells data-parallel ranks apart where other ranks may show the same numbers again."""
    total_where_empty: str = ""
    """Label by which a number is also shown in parts; the total has it empty, or not at all."""
    parts: tuple[str, ...] = ()
    """Labels by which a number is shown in parts, to be added."""
    waiting_is_total: bool = False
    """`waiting` counts the running ones too."""


def _names(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name) for name in names)


VLLM = Dialect(
    name="vllm",
    running=_names("vllm:num_requests_running"),
    waiting=_names("vllm:num_requests_waiting"),
    kv_usage=_names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    prefix_queries=_names("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    prefix_hits=_names("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    preemptions=_names("vllm:num_preemptions_total"),
    cache_config=_names("vllm:cache_config_info"),
    lora=_names("vllm:lora_requests_info"),
    ttft=_names("vllm:time_to_first_token_seconds"),
    inter_token=_names("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    e2e=_names("vllm:e2e_request_latency_seconds"),
    queue_time=_names("vllm:request_queue_time_seconds"),
)
SGLANG = Dialect(
    name="sglang",
    running=_names("sglang:num_running_reqs"),
    waiting=_names("sglang:num_queue_reqs"),
    kv_usage=_names("sglang:token_usage"),
    kv_capacity=_names("sglang:max_total_num_tokens"),
    prefix_queries=_names("sglang:prompt_tokens_total"),
    prefix_hits=_names("sglang:cached_tokens_total"),
    preemptions=_names("sglang:num_retracted_requests_total"),
    rank="dp_rank",
    parts=("cache_source", "is_streaming"),
    total_where_empty="priority",
    queue_time=_names("sglang:queue_time_seconds"),
    ttft=_names("sglang:time_to_first_token_seconds"),
    inter_token=_names("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    e2e=_names("sglang:e2e_request_latency_seconds"),
)
TENSORRT_LLM = Dialect(
    name="tensorrt-llm",
    running=_names("trtllm_num_requests_running"),
    waiting=_names("trtllm_num_requests_waiting"),
    kv_usage=_names("trtllm_kv_cache_utilization"),
    kv_blocks=_names("trtllm_kv_cache_max_blocks"),
    kv_block_tokens=_names("trtllm_kv_cache_tokens_per_block"),
    prefix_queries=_names("trtllm_prompt_tokens_total"),
    prefix_hits=_names("trtllm_prompt_cached_tokens_total"),
    ttft=_names("trtllm_time_to_first_token_seconds"),
    inter_token=_names("trtllm_time_per_output_token_seconds"),
    e2e=_names("trtllm_e2e_request_latency_seconds"),
    queue_time=_names("trtllm_request_queue_time_seconds"),
)
TRITON = Dialect(
    name="triton",
    running=(Metric("nv_trt_llm_request_metrics", "request_type", "scheduled"),),
    waiting=(Metric("nv_trt_llm_request_metrics", "request_type", "active"),),
    kv_usage=(Metric("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),),
    kv_blocks=(Metric("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),),
    kv_block_tokens=(Metric("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),),
    waiting_is_total=True,
)
TGI = Dialect(
    name="tgi",
    running=_names("tgi_batch_current_size"),
    waiting=_names("tgi_queue_size"),
    e2e=_names("tgi_request_duration"),
    queue_time=_names("tgi_request_queue_duration"),
)
LLAMA_CPP = Dialect(
    name="llama.cpp",
    running=_names("llamacpp:requests_processing"),
    waiting=_names("llamacpp:requests_deferred"),
    kv_usage=_names("llamacpp:kv_cache_usage_ratio"),
)

DIALECTS: tuple[Dialect, ...] = (VLLM, SGLANG, TENSORRT_LLM, TRITON, TGI, LLAMA_CPP)
