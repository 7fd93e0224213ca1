"""`aibrix-prefix` and `aibrix-vtc`: two strategies of the AIBrix gateway."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.fairness import RecentTokens
from steersman.agents.policy import NO_CANDIDATE, argmax_decision
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


class AibrixPrefix:
    """The best prefix match that is not overloaded::

        most - fewest running > 8: match only among the least loaded
        matches, by matched share, then by running: the first with running <= mean + 1 sigma
        otherwise: the fewest running

    The gateway counts what it has running itself, so `inflight` is the load. Ties are drawn evenly.
    """

    name: ClassVar[str] = "aibrix-prefix"
    version: ClassVar[str] = ""

    def __init__(self, options: AibrixPrefixOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng

    def decide(self, observation: Observation) -> Decision:
        """The first match that may serve, or the least loaded."""
        mask = observation.mask
        running, match = observation.replicas[:, _INFLIGHT], observation.replicas[:, _MATCH]
        if not mask.any():
            return Decision(NO_CANDIDATE, self.name)
        fewest = running[mask].min()
        candidates = mask
        if running[mask].max() - fewest > self._options.imbalance:
            candidates = mask & (running == fewest)
        limit = running[mask].mean() + self._options.sigmas * running[mask].std()
        fit = candidates & (match > 0) & (running <= limit)
        if fit.any():
            fit &= match == match[fit].max()
            mask = fit
        return argmax_decision(-running, mask, self._rng, policy=self.name)


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
