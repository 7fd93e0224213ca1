"""The words of Steersman: what came in, what was known, what was decided, what happened.

Every layer speaks in these types. Times are seconds from the start of the trace (in a simulation) or
seconds of the process's monotonic clock (in the router); sizes are tokens unless the name says else.

`Request` and `Outcome` never carry prompt text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray


class Priority(IntEnum):
    """Service class (SPEC C1); a lower value is served first."""

    INTERACTIVE = 0
    SEMI_INTERACTIVE = 1
    BATCH = 2
    BACKGROUND = 3


CLASS_WEIGHTS = {
    Priority.INTERACTIVE: 1.0,
    Priority.SEMI_INTERACTIVE: 1.0,
    Priority.BATCH: 0.25,
    Priority.BACKGROUND: 0.25,
}
"""Weight of a request in J (docs/evaluation.md)."""


class Batching(StrEnum):
    """What an engine's iterations are made of."""

    CHUNKED = "chunked"
    """Decodes and chunks of prompts together (vLLM v1, Sarathi)."""
    PREFILL_FIRST = "prefill-first"
    """Whole prompts when any can be admitted, otherwise decodes (vLLM v0)."""
    STATIC = "static"
    """As many whole prompts as fit, and no more until all of them have ended."""


class ToolChoice(IntEnum):
    """Whether the model may, or must, answer with a tool call; matters only where tools are offered."""

    NONE = 0
    AUTO = 1
    REQUIRED = 2


class QuestionType(StrEnum):
    """What kind of answer a prompt asks for (SPEC A1)."""

    UNKNOWN = "unknown"
    FACTUAL = "factual"
    REASONING = "reasoning"
    CREATIVE = "creative"
    EXTRACTION = "extraction"
    TRANSLATION = "translation"
    CHAT = "chat"
    CODE = "code"


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    FAILED = "failed"
    """The backend broke or answered 5xx, and no retry was possible."""
    REJECTED = "rejected"
    """Refused before any backend saw it (4xx, 429, 503)."""
    CANCELLED = "cancelled"
    """The client went away."""
    UNFINISHED = "unfinished"
    """Still running when the measurement ended."""


@dataclass(frozen=True, slots=True)
class Request:
    """What came in. Features only, never the text."""

    request_id: str
    arrival_s: float
    """When it arrived. For a session's later turns in closed-loop replay: the recorded time, used only
    where the parent is not replayed; otherwise the turn arrives `think_time_s` after its parent ends."""
    input_tokens: int
    output_tokens: int | None = None
    """Tokens the model will produce: known in a trace, unknown (None) in the router."""
    max_tokens: int | None = None
    """The client's limit on output tokens, if it set one."""
    model: str = ""
    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    stream: bool = True
    tools: int = 0
    """Number of tool definitions offered."""
    tool_choice: ToolChoice = ToolChoice.AUTO
    has_code: bool = False
    question_type: QuestionType = QuestionType.UNKNOWN
    question_bytes: int = 0
    """Of the last user message, in UTF-8; 0 where there is no text."""
    asked_tokens: int = 0
    """Length of answer that the last user message asks for, where it names one; 0: it does not."""
    wording: float = 0.0
    """What the words of the last user message say of the answer: log of its expected length over the
    usual (`predictors/wording.py`); 0 where nothing is known."""
    turns: int = 1
    """Messages in the conversation so far, this one included."""
    lora_adapter: str | None = None
    session_id: str | None = None
    parent_id: str | None = None
    """`request_id` of the previous turn of the same session."""
    think_time_s: float = 0.0
    """From the parent's last token to this arrival."""
    block_hashes: tuple[int, ...] = ()
    """Chained hashes of the prompt's full prefix blocks, first block first (63-bit, non-negative)."""
    block_tokens: int = 0
    """Tokens per prefix block; 0 where there are no hashes."""
    hour_of_day: float | None = None
    """0 ≤ hour < 24, UTC in the router; a trace has the hours of its recording, or None."""
    called_tool: bool | None = None
    """Whether the answer calls a tool: known in a trace, unknown (None) in the router."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model as the scheduler sees it."""

    name: str
    parameters_b: float
    """Parameters, in billions."""
    weights_gib: float
    kv_bytes_per_token: int
    context_window_tokens: int


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """One model on one kind of replica: the cost of an engine iteration, and its limits.

    An iteration that decodes `n` sequences of `ctx` total context tokens, and prefills chunks of `p_i`
    new tokens on top of `q_i` already computed ones, takes, in seconds::

        host_overhead_s + decode_seq_s * n + decode_context_s * ctx
        + max(decode_base_s, [any prefill] * (prefill_base_s + prefill_token_s * Σ p_i
                                              + prefill_token2_s * Σ p_i (p_i + 2 q_i)))

    The maximum is the roofline: the weights are read once an iteration (`decode_base_s`), and a small
    chunk hides behind that read. It telescopes: a prompt of P tokens cut into chunks pays P² once.

    A mixture of experts reads more weights the more sequences decode: with `decode_base_by_batch_s`
    the engine takes the base from there, linear between its points; estimates use `decode_base_s`.
    """

    name: str
    """For example `a100-llama-3.1-8b`."""
    gpu: str
    model: ModelProfile
    tensor_parallel: int
    gpu_memory_gib: float
    """Of all GPUs of the replica together."""
    decode_base_s: float
    decode_seq_s: float
    decode_context_s: float
    prefill_base_s: float
    prefill_token_s: float
    prefill_token2_s: float
    host_overhead_s: float
    """Scheduler and sampling time added to every iteration."""
    kv_capacity_tokens: int
    pipeline_parallel: int = 1
    """Stages. Each takes its share of the time above, and `pipeline_hop_s`: see `env/pipeline.py`."""
    pipeline_hop_s: float = 0.0
    """From a stage to the next one, per iteration."""
    block_tokens: int = 16
    """KV block size of the engine (vLLM's default)."""
    max_num_seqs: int = 256
    """Sequences that may run at once."""
    max_batched_tokens: int = 2048
    """Token budget of an iteration (chunked prefill)."""
    batching: Batching = Batching.CHUNKED
    hardware_factor: float = 1.0
    """Relative speed for SPEC B1's base weight; A100 is 0.7, H100 is 1."""
    cost_per_hour: float = 0.0
    source: str = ""
    decode_base_by_batch_s: tuple[tuple[int, float], ...] = ()
    """(decoding sequences, base), ascending; empty: `decode_base_s` at any number."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica as last seen, for people: logs, `explain`, error messages.

    The decision path uses rows of the state matrix instead (`predictors/ledger.py`), from which this
    is made.
    """

    replica_id: str
    running: float
    waiting: float
    kv_usage: float
    """Fraction of KV blocks in use, 0 to 1."""
    inflight: int
    """Requests this router has dispatched there and not seen end."""
    age_s: float
    """Since the last successful scrape; infinite before the first."""
    healthy: bool
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All replicas of a pool at one moment. Replaced, never mutated under a reader."""

    at_s: float
    model: str
    replica_ids: tuple[str, ...]
    state: NDArray[np.float64]
    """(replicas, STATE_COLUMNS): see `predictors/ledger.py`."""


@dataclass(slots=True)
class Observation:
    """What a policy sees: arrays in natural units, assembled by `env/observation.py`.

    Every array may carry leading batch dimensions (one per cluster of a vectorised environment); the
    shapes below are those of a single decision.
    """

    replicas: NDArray[np.float32]
    """(n, len(REPLICA_FEATURES)): one row per candidate, for this request."""
    request: NDArray[np.float32]
    """(len(REQUEST_FEATURES),)"""
    pool: NDArray[np.float32]
    """(len(POOL_FEATURES),)"""
    mask: NDArray[np.bool_]
    """(n,): True where a replica may be chosen."""
    identity: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    """(2,): who asks, as stable keys of the tenant and of the session, 0 where unknown
    (`predictors/identity.py`). For affinity and fairness; no model reads it."""
    at_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(()))
    """(): when, in seconds of the router's or the simulation's clock. Only differences mean anything."""

    def single(self, i: int, n: int) -> Observation:
        """The i-th of a batch, with its first n candidates; views."""
        return Observation(
            self.replicas[i, :n],
            self.request[i],
            self.pool[i],
            self.mask[i, :n],
            self.identity[i],
            self.at_s[i, ...],
        )

    def rows(self, rows: NDArray[np.int64], n: int) -> Observation:
        """Some of a batch, each with its first n candidates: copies, or itself if that is all."""
        if len(rows) == len(self.mask) and n == self.mask.shape[1]:
            return self
        return Observation(
            self.replicas[rows, :n],
            self.request[rows],
            self.pool[rows],
            self.mask[rows, :n],
            self.identity[rows],
            self.at_s[rows],
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, and enough to audit it."""

    choice: int
    """Index of the chosen replica in the observation; -1 if none may be chosen."""
    policy: str
    """Name of the policy that made the choice in the end (the fallback's, if it fell back)."""
    version: str = ""
    propensity: float = 1.0
    """Probability with which this choice was made, given the observation."""
    fallback_reason: str = ""
    """Why the guard overruled the learned policy; empty if it did not."""
    scores: NDArray[np.float32] | None = None
    """(n,): higher is better; None where the policy does not score."""
    explored: bool = False
    """Chance made it, to learn from; the policy may have been of the same opinion."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a request."""

    request_id: str
    status: Status
    replica: int
    """Index of the replica that answered last; -1 if none did."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the replica's prefix cache."""
    arrival_s: float
    ttft_s: float
    """Arrival to first token; NaN if there was none."""
    tpot_s: float
    """(E2E - TTFT) / (output tokens - 1); 0 for a single token; NaN if there was none."""
    e2e_s: float
    """Arrival to last token; NaN if it did not end well."""
    preemptions: int = 0
    retries: int = 0
    called_tool: bool | None = None
    """Whether the answer called a tool; None where nobody looked."""
