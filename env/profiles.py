"""Hardware profiles: what an engine iteration costs for one model on one kind of replica.

A profile is a YAML file in `configs/hardware/` that names a model of `configs/models/`. Both are
checked when they are read: a model that does not fit its GPUs is refused with the arithmetic.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from pydantic import Field

from steersman.traces.errors import ConfigError
from steersman.traces.schema import Batching, HardwareProfile, ModelProfile
from steersman.traces.settings import CONFIG_ROOT, Settings, load_settings

MEMORY_RESERVE = 0.05
"""Share of GPU memory that neither weights nor KV cache may use (SPEC G5: 5–8 %)."""
_GIB = 1024**3


class ModelSettings(Settings):
    """One file of `configs/models/`."""

    name: str = Field(min_length=1, description="Name that profiles refer to.")
    parameters_b: float = Field(gt=0, description="Parameters, in billions.")
    weights_gib: float = Field(gt=0, description="Weights in GPU memory, in GiB.")
    kv_bytes_per_token: int = Field(gt=0, description="Bytes of KV cache per token, all layers.")
    context_window_tokens: int = Field(gt=0, description="Longest prompt plus output, in tokens.")


class ProfileSettings(Settings):
    """One file of `configs/hardware/`. See `HardwareProfile` for the formula the times are used in."""

    name: str = Field(min_length=1, description="For example a100-llama-3.1-8b.")
    gpu: str = Field(min_length=1, description="For example a100-80gb.")
    model: str = Field(min_length=1, description="Name of a file in configs/models, without .yaml.")
    tensor_parallel: int = Field(ge=1, description="GPUs that share the model.")
    pipeline_parallel: int = Field(
        default=1, ge=1, le=16, description="Stages of layers; the times below are of all together."
    )
    pipeline_hop_s: float = Field(
        default=0.0, ge=0, lt=1, description="From one stage to the next, per iteration."
    )
    gpu_memory_gib: float = Field(gt=0, description="Memory of all GPUs of the replica, in GiB.")
    decode_base_s: float = Field(gt=0, lt=10, description="One read of the weights, per iteration.")
    decode_seq_s: float = Field(ge=0, lt=1, description="Per decoding sequence.")
    decode_context_s: float = Field(ge=0, lt=0.01, description="Per context token of what decodes.")
    prefill_base_s: float = Field(ge=0, lt=10, description="Per iteration that prefills.")
    prefill_token_s: float = Field(gt=0, lt=1, description="Per prefilled token.")
    prefill_token2_s: float = Field(ge=0, lt=0.001, description="Per squared prefilled token.")
    host_overhead_s: float = Field(ge=0, lt=1, description="Scheduling and sampling, per iteration.")
    kv_capacity_tokens: int = Field(gt=0, description="Tokens that fit the KV cache.")
    block_tokens: int = Field(default=16, ge=1, description="Tokens per KV block of the engine.")
    max_num_seqs: int = Field(default=256, ge=1, description="Sequences that may run at once.")
    max_batched_tokens: int = Field(default=2048, ge=1, description="Token budget of an iteration.")
    batching: Batching = Field(
        default=Batching.CHUNKED,
        description="What an iteration is made of: chunked (decodes and chunks of prompts, as vLLM v1), "
        "prefill-first (whole prompts before decodes, as vLLM v0), or static (a new batch only when "
        "the last has ended).",
    )
    hardware_factor: float = Field(default=1.0, gt=0, description="Relative speed, H100 is 1.")
    cost_per_hour: float = Field(default=0.0, ge=0, description="Price of the replica, US dollars.")
    source: str = Field(default="", description="Where the numbers come from.")
    decode_base_by_batch_s: tuple[tuple[int, float], ...] = Field(
        default=(),
        description="Where the base grows with the batch (experts): [sequences, base] pairs.",
    )


@cache
def load_model(name: str) -> ModelProfile:
    """A model of `configs/models/` by name, or from the path of a YAML file.

    Raises:
        ConfigError: unknown name, or a key of the file is wrong.
    """
    return ModelProfile(**load_settings(_resolve(name, "models", "model"), ModelSettings).model_dump())


@cache
def load_profile(name: str) -> HardwareProfile:
    """A profile of `configs/hardware/` by name (without `.yaml`), or from the path of a YAML file.

    Raises:
        ConfigError: unknown name, a key of the file is wrong, or the model does not fit.
    """
    path = _resolve(name, "hardware", "hardware profile")
    settings = load_settings(path, ProfileSettings)
    values = settings.model_dump(exclude={"model"})
    profile = HardwareProfile(model=load_model(settings.model), **values)
    check_profile(profile, source=str(path))
    return profile


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that ship with Steersman."""
    return tuple(sorted(path.stem for path in (CONFIG_ROOT / "hardware").glob("*.yaml")))


def check_profile(profile: HardwareProfile, *, source: str) -> None:
    """Refuse a replica that cannot exist.

    Raises:
        ConfigError: weights, KV cache and reserve exceed the memory, or a limit makes no sense.
    """
    usable_gib = profile.gpu_memory_gib * (1.0 - MEMORY_RESERVE)
    weights_gib = profile.model.weights_gib
    if weights_gib > usable_gib:
        raise ConfigError(
            f"{source}: {profile.model.name} does not fit: weights of {weights_gib:.1f} GiB exceed "
            f"{usable_gib:.1f} GiB (gpu_memory_gib {profile.gpu_memory_gib:g} less "
            f"{MEMORY_RESERVE:.0%} reserve); raise tensor_parallel and gpu_memory_gib"
        )
    kv_gib = profile.kv_capacity_tokens * profile.model.kv_bytes_per_token / _GIB
    if weights_gib + kv_gib > usable_gib:
        room = int((usable_gib - weights_gib) * _GIB / profile.model.kv_bytes_per_token)
        raise ConfigError(
            f"{source}: kv_capacity_tokens = {profile.kv_capacity_tokens}: a KV cache of {kv_gib:.1f} "
            f"GiB does not fit beside the weights; at most {room} tokens do"
        )
    _check_curve(profile, source)
    if profile.max_batched_tokens < profile.max_num_seqs:
        raise ConfigError(
            f"{source}: max_batched_tokens = {profile.max_batched_tokens} is less than max_num_seqs = "
            f"{profile.max_num_seqs}, each of which takes a token; raise it or lower the other"
        )
    if profile.kv_capacity_tokens < profile.block_tokens:
        raise ConfigError(
            f"{source}: kv_capacity_tokens = {profile.kv_capacity_tokens} is less than one block of "
            f"{profile.block_tokens} tokens; raise it"
        )


def _check_curve(profile: HardwareProfile, source: str) -> None:
    curve = profile.decode_base_by_batch_s
    key = f"{source}: decode_base_by_batch_s"
    for batch, base_s in curve:
        if not (batch >= 1 and 0 < base_s < 10):
            raise ConfigError(
                f"{key}: [{batch}, {base_s:g}] must be at least 1 sequence and 0 to 10 seconds"
            )
    for (batch, base_s), (next_batch, next_base_s) in pairwise(curve):
        if next_batch <= batch or next_base_s < base_s:
            raise ConfigError(
                f"{key}: [{next_batch}, {next_base_s:g}] follows [{batch}, {base_s:g}]; sequences must "
                "rise and times must not fall"
            )


def with_limits(
    profile: HardwareProfile,
    *,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    kv_capacity_tokens: int | None = None,
    batching: Batching | None = None,
) -> HardwareProfile:
    """The same replica started with other engine limits; None keeps the profile's.

    Raises:
        ConfigError: `kv_capacity_tokens` does not fit, or there are fewer tokens than sequences.
    """
    limited = replace(
        profile,
        max_num_seqs=max_num_seqs or profile.max_num_seqs,
        max_batched_tokens=max_batched_tokens or profile.max_batched_tokens,
        kv_capacity_tokens=kv_capacity_tokens or profile.kv_capacity_tokens,
        batching=batching or profile.batching,
    )
    if limited != profile:
        check_profile(limited, source=profile.name)
    return limited


def _resolve(name: str, folder: str, what: str) -> Path:
    """The path of a bundled file, or the path that was given."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = CONFIG_ROOT / folder / f"{name}.yaml"
    if path.is_file():
        return path
    known = sorted(file.stem for file in (CONFIG_ROOT / folder).glob("*.yaml"))
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"unknown {what} '{name}'; {hint}")
