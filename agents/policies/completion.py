"""`earliest-completion`: where all work would be done first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policies.scored import Constants, NoOptions, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.schema import Observation

Float32 = NDArray[np.float32]

_QUEUE = REPLICA_INDEX["queue"]
_PREFILL = REPLICA_INDEX["prefill_tokens"]
_CONTEXT = REPLICA_INDEX["context_tokens"]
_OUTPUT = REPLICA_INDEX["output_tokens"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]
_DECODE_BASE = REPLICA_INDEX["decode_base_s"]
_DECODE_SEQ = REPLICA_INDEX["decode_seq_s"]
_DECODE_CONTEXT = REPLICA_INDEX["decode_context_s"]
_PREFILL_TOKEN = REPLICA_INDEX["prefill_token_s"]
_MAX_NUM_SEQS = REPLICA_INDEX["max_num_seqs"]
_REQUEST_INPUT = REQUEST_INDEX["input_tokens"]
_REQUEST_OUTPUT = REQUEST_INDEX["output_p50"]


def completion_s(replicas: Float32, request: Float32) -> Float32:
    """When a candidate would be done with everything in flight and this request, (..., n)::

        (prefill + uncached) * prefill_token_s
            + (output_in_flight / 2 + output) / batch * decode_iteration_s(batch)

    Remaining work over capability (SPEC B1): prompt tokens at the replica's prefill speed, then
    output tokens at its decode speed with the batch it would have. A request in flight is taken to
    have half of its predicted output before it.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
        request: (..., len(REQUEST_FEATURES)).
    """
    prompt = request[..., _REQUEST_INPUT : _REQUEST_INPUT + 1]
    output = np.maximum(request[..., _REQUEST_OUTPUT : _REQUEST_OUTPUT + 1], np.float32(1.0))
    batch = np.minimum(replicas[..., _QUEUE] + np.float32(1.0), replicas[..., _MAX_NUM_SEQS])
    iteration_s = (
        replicas[..., _DECODE_BASE]
        + replicas[..., _DECODE_SEQ] * batch
        + replicas[..., _DECODE_CONTEXT] * (replicas[..., _CONTEXT] + prompt)
    )
    prefill_s = (replicas[..., _PREFILL] + replicas[..., _UNCACHED]) * replicas[..., _PREFILL_TOKEN]
    tokens = np.float32(0.5) * replicas[..., _OUTPUT] + output
    total: Float32 = prefill_s + tokens / batch * iteration_s
    return total


class EarliestCompletion(ScoredPolicy):
    """Where everything in flight, and this request, would be done first."""

    name: ClassVar[str] = "earliest-completion"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Seconds until all is done, (..., n)."""
        del constants
        return completion_s(observation.replicas, observation.request)
