"""The learned policy as the router runs it: one ONNX graph, onnxruntime, numpy.

The graph answers one logit per head and replica. The choice is the best mean over the heads; how far
the heads disagree about it tells the guard when the policy is guessing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.agents.ranges import Ranges
from steersman.predictors.bundle import POLICY_FILE, Bundle
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Decision, Observation

Float32 = NDArray[np.float32]

KIND = "policy"
MASKED = -1e9
"""Score of a replica that may not be chosen: its probability underflows to exactly 0."""
POLICY_FEATURES: tuple[str, ...] = (
    *(f"replica.{name}" for name in REPLICA_FEATURES),
    *(f"request.{name}" for name in REQUEST_FEATURES),
    *(f"pool.{name}" for name in POOL_FEATURES),
)
"""Columns of the graph's three inputs, one after the other, as its metadata names them."""

_FIRST_REQUEST = len(REPLICA_FEATURES)
_FIRST_POOL = _FIRST_REQUEST + len(REQUEST_FEATURES)


class LearnedPolicy:
    """A trained routing policy.

    Args:
        model: the policy graph, of kind `policy` and for `POLICY_FEATURES`.
        rng: draws ties.

    Raises:
        ArtifactError: the model's training ranges make no sense.
    """

    def __init__(self, model: OnnxModel, rng: np.random.Generator) -> None:
        self._model = model
        self._rng = rng
        lower = model.metadata.lower.astype(np.float32)
        upper = model.metadata.upper.astype(np.float32)
        self.ranges = Ranges(
            lower[:_FIRST_REQUEST],
            upper[:_FIRST_REQUEST],
            lower[_FIRST_REQUEST:_FIRST_POOL],
            upper[_FIRST_REQUEST:_FIRST_POOL],
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, rng: np.random.Generator) -> LearnedPolicy:
        """The policy of a bundle.

        Raises:
            ArtifactError: the bundle has none, or it is not what this version can serve.
        """
        model = bundle.model(POLICY_FILE, kind=KIND, features=POLICY_FEATURES)
        if model is None:
            raise ArtifactError(
                f"{bundle.directory}: has no {POLICY_FILE}; train one with 'steersman train policy'"
            )
        return cls(model, rng)

    @property
    def name(self) -> str:
        """`learned`."""
        return "learned"

    @property
    def version(self) -> str:
        """Which artifact."""
        return self._model.metadata.version

    def head_scores(self, observation: Observation) -> Float32:
        """(heads, n): logits of every head; about -1e9 where the mask is False."""
        outputs = self._model.run(
            {
                "replicas": observation.replicas[None],
                "request": observation.request[None],
                "pool": observation.pool[None],
                "mask": observation.mask[None],
            }
        )
        heads: Float32 = outputs[0][0]
        return heads

    def decide(self, observation: Observation) -> Decision:
        """The best mean score."""
        if not observation.mask.any():
            return Decision(NO_CANDIDATE, self.name, self.version)
        return self.choose(self.head_scores(observation), observation.mask)

    def choose(self, heads: Float32, mask: NDArray[np.bool_]) -> Decision:
        """The decision that follows from `head_scores`; at least one candidate must be allowed."""
        scores: Float32 = np.add.reduce(heads) / len(heads)  # as `mean` does, in a third of the time
        return argmax_decision(scores, mask, self._rng, policy=self.name, version=self.version)
