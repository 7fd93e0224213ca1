"""Who gets a request: features, predictions, observation, policy. Nothing here waits for anything.

`prepare` does once per request what does not depend on the moment; `choose` does the rest, and again
for every retry. The numbers come from the same functions as in the simulator.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import NO_CANDIDATE, Policy, settle
from steersman.env.observation import observe
from steersman.predictors.features import (
    NUMPY,
    REPLICA_INDEX,
    Formulas,
    length_features,
    request_features,
)
from steersman.predictors.identity import identity
from steersman.predictors.latency import LatencyPredictor
from steersman.predictors.length import LengthPredictor
from steersman.predictors.objectives import slo_s
from steersman.predictors.past import Past
from steersman.predictors.width import Awaited, Widths
from steersman.serving.affinity.affinity import Affinity
from steersman.serving.affinity.group import Group
from steersman.serving.canary.arm import Arm, Arms
from steersman.serving.headers import NO_HINTS, Hints
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet, Pool
from steersman.serving.replica import Replica
from steersman.traces.schema import ClusterSnapshot, Decision, Observation, Request

Float32 = NDArray[np.float32]

_RAW_TTFT = REPLICA_INDEX["raw_ttft_s"]
_RAW_TPOT = REPLICA_INDEX["raw_tpot_s"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]
_MATCH = REPLICA_INDEX["match_fraction"]


T = TypeVar("T")

MOST_OBJECTIVES = 10_000
"""Lengths of prompts whose objectives are remembered of a pool; a megabyte or two."""

Room = Callable[[Observation], NDArray[np.bool_]]
"""Of the candidates of an observation, (n,), those that have room."""


class Saturated(Exception):  # noqa: N818 (not an error)
    """Nobody has room for a request now.

    Args:
        seen: what was seen of it, with nobody to choose.
    """

    def __init__(self, seen: Observation) -> None:
        super().__init__("saturated")
        self.seen = seen


class Deciders(Protocol):
    """Who decides now; replaced as a whole when a new bundle comes."""

    @property
    def version(self) -> str:
        """Of the trained models; empty without any."""
        ...

    @property
    def length(self) -> LengthPredictor:
        """The output-length predictor."""
        ...

    @property
    def latency(self) -> LatencyPredictor:
        """The TTFT and TPOT predictor."""
        ...

    def policy(self, model: str) -> Policy:
        """The policy of a model's pool, with its own state."""
        ...

    def widths(self, model: str) -> Widths:
        """How wide p90 of the latency predictor has to be for a model."""
        ...


@dataclass(slots=True)
class Prepared:
    """A request, understood."""

    request: Request
    pool: Pool
    features: Float32
    """REQUEST_FEATURES."""
    output_p50: float
    output_p90: float
    output_rank: float
    """To order by: see `predictors/length.py`."""
    excluded: NDArray[np.bool_]
    """(n,): replicas that have been tried."""
    spent_s: float
    """Time taken so far, for the metrics."""
    group: Group | None = None
    """To which it belongs, if any."""
    arm: Arm | None = None
    """Of the canary, if there is one."""


@dataclass(slots=True)
class Route:
    """A choice, and everything that led to it."""

    prepared: Prepared
    replica: Replica
    decision: Decision
    observation: Observation
    snapshot: ClusterSnapshot
    match_tokens: NDArray[np.float64]
    latency: LatencyPredictor
    widths: Widths
    """With which it is predicted."""
    dispatched_s: float
    settle: Callable[[], None]
    """`Router.settle`."""
    bundle_version: str = ""
    """Of the trained models that decided."""
    _modelled: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _predicted: NDArray[np.float64] | None = field(default=None, init=False, repr=False)

    @property
    def modelled(self) -> NDArray[np.float64]:
        """(4,): TTFT and TPOT there as the predictor gives them, in the order of `LATENCY_OUTPUTS`.

        Asked for the first time when the request is on its way (`Flight.depart`): the choice does not
        depend on it, and nobody has to wait for it.
        """
        if self._modelled is None:
            chosen = self.observation.replicas[self.decision.choice][None]
            self._modelled = self.latency.predict(chosen, self.prepared.features)[0]
        return self._modelled

    @property
    def predicted(self) -> NDArray[np.float64]:
        """(4,): the same, p90 as wide as outcomes ask for at the first call."""
        if self._predicted is None:
            self._predicted = self.widths.apply(self.dispatched_s, self.modelled)
        return self._predicted

    def expect(self) -> Awaited:
        """It is on its way, and will teach the widths."""
        return self.widths.expect(self.dispatched_s, self.modelled)

    @property
    def uncached_tokens(self) -> float:
        """Prompt tokens the replica must compute, as believed."""
        return float(self.observation.replicas[self.decision.choice, _UNCACHED])

    @property
    def match_fraction(self) -> float:
        """Of the prompt, that the replica holds by all that was sent there."""
        return float(self.observation.replicas[self.decision.choice, _MATCH])

    @property
    def raw_ttft_s(self) -> float:
        """The analytic estimate, without bias correction."""
        return float(self.observation.replicas[self.decision.choice, _RAW_TTFT])

    @property
    def raw_tpot_s(self) -> float:
        """The analytic estimate, without bias correction."""
        return float(self.observation.replicas[self.decision.choice, _RAW_TPOT])

    @property
    def ttft_s(self) -> float:
        """When the first token is to be expected, from dispatch: the predicted median."""
        return float(self.predicted[0])


class _Decided(NamedTuple):
    decision: Decision
    policy: Policy
    latency: LatencyPredictor
    widths: Widths
    version: str


class Router:
    """Sequences and times the steps of a decision."""

    def __init__(
        self,
        fleet: Fleet,
        deciders: Deciders,
        past: Past,
        metrics: RouterMetrics,
        clock: Clock,
        affinity: Affinity | None = None,
        arms: Arms | None = None,
    ) -> None:
        self._arms = arms
        self._affinity = affinity
        self._fleet = fleet
        self._deciders = deciders
        self._past = past
        self._metrics = metrics
        self._clock = clock
        self.formulas = NUMPY
        """Of what a decision looks at."""
        self._unsettled: tuple[Policy, Decision, float] | None = None
        """What decided last, what, and in how many seconds."""

    def calculate_by(self, formulas: Formulas) -> None:
        """From the next decision on, what it looks at."""
        self.formulas = formulas

    def settle(self) -> None:
        """Do what the last decision left for when its request would be on its way, if it is not done."""
        if self._unsettled is None:
            return
        (policy, decision, spent_s), self._unsettled = self._unsettled, None
        self._count(decision, spent_s)
        settle(policy)

    def prepare(self, request: Request, pool: Pool, hints: Hints) -> Prepared:
        """Predict the output length and settle the objectives. To be called once per request."""
        start = perf_counter()
        known = length_features(request, self._past.begin(request))
        arm = None if self._arms is None else self._arms.assign(request)
        predicted = self._either(arm, lambda deciders: deciders.length.predict(known[None]))
        output_p50, output_p90, output_rank = predicted[0].tolist()
        # Of the whole pool, healthy or not; the client's own objectives come first.
        ttft_slo_s, tpot_slo_s = self._objectives_s(pool, request.input_tokens)
        features = request_features(
            known,
            output_p50,
            output_p90,
            ttft_slo_s if hints.ttft_slo_s is None else hints.ttft_slo_s,
            tpot_slo_s if hints.tpot_slo_s is None else hints.tpot_slo_s,
        )
        excluded = np.zeros(len(pool.rows), dtype=np.bool_)
        spent_s = perf_counter() - start
        return Prepared(
            request,
            pool,
            features,
            output_p50,
            output_p90,
            output_rank,
            excluded,
            spent_s,
            arm=arm,
        )

    def _objectives_s(self, pool: Pool, prompt_tokens: int) -> tuple[float, float]:
        """`slo_s` of a prompt; remembered, for a pool keeps its replicas, and they their profiles."""
        known = pool.objectives_s.get(prompt_tokens)
        if known is None:
            if len(pool.objectives_s) >= MOST_OBJECTIVES:
                pool.objectives_s.clear()
            known = slo_s(
                self._fleet.state.take(pool.rows, axis=0),
                float(prompt_tokens),
                self.formulas.unloaded_ttft_s,
            )
            pool.objectives_s[prompt_tokens] = known
        return known

    def _has_to_stay(self, prepared: Prepared, observation: Observation) -> bool:
        """Whether only one replica can serve it, and may: it would hold up those behind it."""
        group = prepared.group
        if group is None or not group.pinned or group.home not in prepared.pool.ids:
            return False
        return bool(observation.mask[prepared.pool.ids.index(group.home)])

    def choose(self, prepared: Prepared, room: Room | None = None) -> Route | None:
        """Choose a replica that has not been tried; None if there is none.

        Args:
            prepared: the request.
            room: which of the candidates have room for it; None: all.

        Raises:
            Saturated: there are candidates, and none has room.
        """
        self.settle()
        start = perf_counter()
        now_s = self._clock()
        if not self._refresh(prepared):
            return None
        pool, fleet = prepared.pool, self._fleet
        snapshot = fleet.snapshot(pool, now_s)
        match_tokens = fleet.match_tokens(pool, prepared.request.block_hashes)
        excluded = fleet.avoided(pool, prepared.excluded, now_s)
        asked = (
            prepared.features,
            match_tokens,
            np.array(now_s),
            excluded,
            identity(prepared.request.tenant, prepared.request.session_id),
        )
        observation = observe(snapshot.state, *asked, self.formulas)
        is_somebody = bool(np.count_nonzero(observation.mask))
        if not is_somebody and fleet.hope(pool, snapshot.state, excluded):
            observation = observe(snapshot.state, *asked, self.formulas)
            is_somebody = True
        if room is not None and is_somebody and not self._has_to_stay(prepared, observation):
            observation.mask = room(observation)
            if not observation.mask.any():
                prepared.spent_s += perf_counter() - start
                raise Saturated(observation)
        decided = self._either(
            prepared.arm, lambda deciders: self._decide(prepared, observation, deciders)
        )
        decision = decided.decision
        spent_s, prepared.spent_s = prepared.spent_s + perf_counter() - start, 0.0
        self._unsettled = decided.policy, decision, spent_s
        if decision.choice == NO_CANDIDATE:
            self.settle()
            return None
        return Route(
            prepared=prepared,
            replica=pool.replicas[decision.choice],
            decision=decision,
            observation=observation,
            snapshot=snapshot,
            match_tokens=match_tokens,
            latency=decided.latency,
            widths=decided.widths,
            dispatched_s=now_s,
            settle=self.settle,
            bundle_version=decided.version,
        )

    def _either(self, arm: Arm | None, ask: Callable[[Deciders], T]) -> T:
        """What the arm's deciders say; the champion's, if the challenger's code fails."""
        if arm is None or self._arms is None:
            return ask(self._deciders)
        deciders = self._arms.deciders(arm)
        if deciders is self._deciders:
            return ask(deciders)
        try:
            return ask(deciders)
        except Exception as error:
            self._arms.broke(arm, error)
            return ask(self._deciders)

    def _decide(self, prepared: Prepared, observation: Observation, deciders: Deciders) -> _Decided:
        pool = prepared.pool
        policy = deciders.policy(pool.model)
        if self._affinity is None or prepared.group is None:
            decision = policy.decide(observation)
        else:
            decision = self._affinity.decide(prepared.group, pool, observation, policy)
        return _Decided(
            decision, policy, deciders.latency, deciders.widths(pool.model), deciders.version
        )

    def _refresh(self, prepared: Prepared) -> bool:
        """Replicas may have come or gone since the last attempt. False: the model has none any more."""
        known, now = prepared.pool, self._fleet.pools.get(prepared.pool.model)
        if now is None:
            return False
        if now is not known:
            tried = {known.replicas[i] for i in np.flatnonzero(prepared.excluded)}
            prepared.pool = now
            prepared.excluded = np.array([replica in tried for replica in now.replicas])
        return True

    def warm_up(self) -> None:
        """Do once what is slow only the first time, so that no request pays for it.

        The policy is not asked: it would remember.
        """
        request = Request("warm-up", self._clock(), 100)
        for pool in self._fleet.pools.values():
            prepared = self.prepare(request, pool, NO_HINTS)
            snapshot = self._fleet.snapshot(pool, self._clock())
            match_tokens = self._fleet.match_tokens(pool, ())
            now_s = np.array(self._clock())
            seen = observe(snapshot.state, prepared.features, match_tokens, now_s, prepared.excluded)
            self._deciders.latency.predict(seen.replicas[:1], prepared.features)

    def _count(self, decision: Decision, spent_s: float) -> None:
        self._metrics.decision_seconds.observe(spent_s)
        if decision.choice == NO_CANDIDATE:
            return
        self._metrics.decisions.labels(decision.policy).inc()
        if decision.fallback_reason:
            self._metrics.fallbacks.labels(decision.fallback_reason).inc()


def new_request_id() -> str:
    """An identifier nobody can guess: of the request, and of the decision about it."""
    return f"req-{secrets.token_hex(8)}"
