"""`aibrix-prefix` and `aibrix-vtc`: two strategies of the AIBrix gateway."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.fairness import RecentTokens
from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.agents.policy import NO_CANDIDATE
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.predictors.identity import TENANT
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_INFLIGHT = REPLICA_INDEX["inflight"]
_MATCH = REPLICA_INDEX["match_fraction"]
_INPUT = REQUEST_INDEX["input_tokens"]
_OUTPUT = REQUEST_INDEX["output_p50"]

_STEPS = 200
"""Of the numerical integration of a propensity."""


class AibrixPrefixOptions(Settings):
    """Options of `aibrix-prefix`; the defaults are the published ones."""

    imbalance: float = Field(
        default=8.0, ge=0.0, description="Greatest difference of running requests that is balanced."
    )
    sigmas: float = Field(
        default=1.0, description="A match serves up to so many standard deviations above the mean load."
    )


class AibrixPrefix(ScoredPolicy):
    """The best prefix match that is not overloaded::

        most - fewest running > 8: match only among the least loaded
        matches, by matched share, then by running: the first with running <= mean + 1 sigma
        otherwise: the fewest running

    The gateway counts what it has running itself, so `inflight` is the load. Ties are drawn evenly.
    """

    name: ClassVar[str] = "aibrix-prefix"
    precision: ClassVar[type[np.floating]] = np.float64

    def __init__(self, options: AibrixPrefixOptions, rng: np.random.Generator) -> None:
        super().__init__(rng, options.imbalance, options.sigmas)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> NDArray[np.float32]:
        """Requests running, (..., n)."""
        del constants
        running: NDArray[np.float32] = observation.replicas[..., _INFLIGHT]
        return running

    @classmethod
    def ranking(
        cls, observation: Observation, constants: Constants
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """Among the best matches that may serve, or all."""
        imbalance, sigmas = constants
        mask, match = observation.mask, observation.replicas[..., _MATCH]
        running = cls.price(observation, constants)
        fewest = np.where(mask, running, np.inf).min(axis=-1, keepdims=True)
        most = np.where(mask, running, -np.inf).max(axis=-1, keepdims=True)
        fit = mask & (match > 0) & ((running == fewest) | ~(most - fewest > imbalance))
        mean, deviation = _spread(running, mask)
        fit &= running <= mean + sigmas * deviation
        fit &= match == np.where(fit, match, -np.inf).max(axis=-1, keepdims=True)
        return running, np.where(fit.any(axis=-1, keepdims=True), fit, mask)


def _spread(
    running: NDArray[np.float32], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of whole numbers over the allowed candidates, each (..., 1).

    By their sums, which are exact: a load that lies just on the limit is within it.
    """
    count = np.maximum(np.count_nonzero(mask, axis=-1, keepdims=True), 1)
    wide = np.where(mask, running, 0.0).astype(np.float64)
    mean = wide.sum(axis=-1, keepdims=True) / count
    square = (wide * wide).sum(axis=-1, keepdims=True) / count
    return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))


class AibrixVtcOptions(Settings):
    """Options of `aibrix-vtc`; the defaults are the published ones."""

    window_s: float = Field(default=300.0, gt=0.0, description="Over which a user's tokens count.")
    least_bucket: float = Field(default=1000.0, gt=0.0, description="Tokens per bucket, at least.")
    input_weight: float = Field(default=1.0, ge=0.0, description="Of a prompt token.")
    output_weight: float = Field(default=2.0, ge=0.0, description="Of an estimated output token.")
    most_running: float = Field(default=100.0, gt=0.0, description="Requests that count as full.")
    noise: float = Field(default=0.1, gt=0.0, description="Width of the uniform noise that breaks ties.")


class AibrixVtc:
    """Virtual token counter, basic: users are spread over replicas by what they have used::

        bucket = max(1000, (least + most tokens of a user) / 2), over 5 minutes
        x      = min(tokens of this user / bucket, n - 1)
        argmin of |index - x| + min(running / 100, 1) + U(0, 0.1)

    with input + 2 * estimated output tokens per request. It goes by position among the allowed
    replicas. A request without a tenant goes anywhere.
    """

    name: ClassVar[str] = "aibrix-vtc"
    version: ClassVar[str] = ""

    def __init__(self, options: AibrixVtcOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng
        self._used = RecentTokens(options.window_s)

    def decide(self, observation: Observation) -> Decision:
        """The replica nearest to the user's bucket."""
        o, allowed = self._options, np.flatnonzero(observation.mask)
        if not len(allowed):
            return Decision(NO_CANDIDATE, self.name)
        if not observation.identity[TENANT]:
            choice = int(allowed[self._rng.integers(len(allowed))])
            return Decision(choice, self.name, propensity=1.0 / len(allowed))
        user, now_s = int(observation.identity[TENANT]), float(observation.at_s)
        least, most = self._used.bounds(now_s)
        bucket = max(o.least_bucket, 0.5 * (least + most))
        x = min(self._used.of(user, now_s) / bucket, len(allowed) - 1.0)
        load = np.nan_to_num(observation.replicas[allowed, _INFLIGHT], nan=o.most_running)
        base = np.abs(np.arange(len(allowed)) - x) + np.minimum(load / o.most_running, 1.0)
        winner = int(np.argmin(base + self._rng.uniform(0.0, o.noise, len(allowed))))
        prompt, output = float(observation.request[_INPUT]), float(observation.request[_OUTPUT])
        self._used.add(user, o.input_weight * prompt + o.output_weight * output, now_s)
        scores = np.full(len(observation.mask), -np.inf, dtype=np.float32)
        scores[allowed] = -base
        return Decision(
            int(allowed[winner]), self.name, propensity=_chance(base, winner, o.noise), scores=scores
        )


def _chance(base: NDArray[np.float64], winner: int, noise: float) -> float:
    """Chance that base + U(0, noise) is least at `winner`: midpoint rule over its own noise."""
    own = base[winner] + (np.arange(_STEPS) + 0.5) / _STEPS * noise
    others = np.delete(base, winner)
    above = np.clip((others[:, None] + noise - own) / noise, 0.0, 1.0)
    return max(float(above.prod(axis=0).mean()), 1e-9)
