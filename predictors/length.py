"""Output length before an answer exists (SPEC A2): p50, p90 and a rank score, by model or by fallback.

Never one value, and never a priority: the rank orders answers by length and says nothing of urgency.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.bundle import LENGTH_FILE
from steersman.predictors.bundled_model import BundledModel
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.onnx_model import OnnxModel

KIND = "length"

LENGTH_OUTPUTS: tuple[str, ...] = ("output_p50", "output_p90", "output_rank")
"""The rank is the expected natural log of the output tokens: to order by, not to count with."""

FALLBACK_P50 = 200.0
FALLBACK_P90 = 600.0
"""Output tokens of a tenant nobody knows, without a model: about those of chat traffic."""

MOST_TOKENS = 1_000_000.0
"""No answer is taken to be longer: a replica's account adds predictions up, and one absurd number would
drown all others."""

_MAX_TOKENS = LENGTH_FEATURES.index("max_tokens")
TENANT_BLEND = tuple(LENGTH_FEATURES.index(f"tenant_blend_{name}") for name in ("p50", "p90"))
WORDING = LENGTH_FEATURES.index("wording")


def expected_quantiles(
    features: NDArray[np.float32], constants: tuple[float, float]
) -> NDArray[np.float64]:
    """p50 and p90 without a model: the tenant's blended quantiles, as the wording moves them.

    Args:
        features: (b, len(LENGTH_FEATURES)).
        constants: for a tenant and model that nobody knows.

    Returns:
        (b, 2), output tokens.
    """
    # No more than an answer can have: without a bound, nothing of infinitely many is not a number.
    blend = np.minimum(features[:, TENANT_BLEND].astype(np.float64), MOST_TOKENS)
    moved = np.exp(features[:, WORDING, None].astype(np.float64))
    return np.where(blend > 0, blend, constants) * moved


class LengthPredictor(Protocol):
    """Predicts how long answers will be. Safe from any thread."""

    @property
    def version(self) -> str:
        """Which artifact; empty for a rule without one."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """`LENGTH_OUTPUTS`.

        Args:
            features: (b, len(LENGTH_FEATURES)).

        Returns:
            (b, 3), with 1 <= p50 <= p90 <= the client's limit if it set one, and <= MOST_TOKENS; the
            rank is between 0 and the log of that bound.
        """
        ...


class FallbackLength:
    """What the tenant's recent answers and the wording say; constants where nothing is known."""

    def __init__(self, *, p50: float = FALLBACK_P50, p90: float = FALLBACK_P90) -> None:
        self._constants = p50, p90

    @property
    def version(self) -> str:
        """None: a rule."""
        return ""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """See `LengthPredictor.predict`."""
        if len(features) == 1:
            return self._predict_row(features)
        p50_p90 = expected_quantiles(features, self._constants)
        rank = np.log(np.maximum(p50_p90[:, :1], 1.0))
        return _sound(np.concatenate((p50_p90, rank), axis=1), features)

    def _predict_row(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of a request: Python's numbers take a third of the time."""
        row = features[0].tolist()
        blends = [min(row[column], MOST_TOKENS) for column in TENANT_BLEND]
        moved = float(np.exp(row[WORDING]))  # not `math.exp`, whose last digit may be another
        p50, p90 = [
            (blend if blend > 0.0 else constant) * moved
            for blend, constant in zip(blends, self._constants, strict=True)
        ]
        return _sound_row([p50, p90, float(np.log(max(p50, 1.0)))], features)


class LengthModel(BundledModel):
    """The trained model."""

    kind = KIND
    file = LENGTH_FILE
    features = LENGTH_FEATURES

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model)
        self._fallback = FallbackLength()

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """See `LengthPredictor.predict`. Rows the graph has no finite answer for get the fallback's."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        found = self._model.run({"features": rows})[0]
        if len(found) == 1:
            # A request: the sum of a few numbers is finite only if they are.
            one = found[0].tolist()
            if math.isfinite(sum(one)):
                return _sound_row(one, features)
        answers = found.astype(np.float64)
        finite = np.isfinite(answers)
        if np.count_nonzero(finite) < finite.size:
            sound = finite.all(axis=1, keepdims=True)
            answers = np.where(sound, answers, self._fallback.predict(features))
        return _sound(answers, features)


def _sound(answers: NDArray[np.float64], features: NDArray[np.float32]) -> NDArray[np.float64]:
    """1 <= p50 <= p90 <= limit and MOST_TOKENS; the rank within the logs of these bounds."""
    if len(answers) == 1:
        return _sound_row(answers[0].tolist(), features)
    limits = features[:, _MAX_TOKENS].astype(np.float64)
    # Not `np.clip`, which takes several times as long on a row.
    most = np.where(limits > 0, np.minimum(np.maximum(limits, 1.0), MOST_TOKENS), MOST_TOKENS)
    sound = np.empty((len(answers), len(LENGTH_OUTPUTS)))
    sound[:, 0] = np.minimum(np.maximum(answers[:, 0], 1.0), most)
    sound[:, 1] = np.minimum(np.maximum(answers[:, 1], sound[:, 0]), most)
    sound[:, 2] = np.minimum(np.maximum(answers[:, 2], 0.0), np.log(most))
    return sound


def _sound_row(answer: list[float], features: NDArray[np.float32]) -> NDArray[np.float64]:
    """`_sound` of a single row: Python's numbers take a tenth of the time."""
    p50, p90, rank = answer
    limit = float(features[0, _MAX_TOKENS])
    bound = min(max(limit, 1.0), MOST_TOKENS) if limit > 0 else MOST_TOKENS
    p50 = min(max(p50, 1.0), bound)
    return np.array([[p50, min(max(p90, p50), bound), min(max(rank, 0.0), math.log(bound))]])
