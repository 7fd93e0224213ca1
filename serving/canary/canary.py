"""The canary of one router: deals out arms, looks at outcomes, keeps step with the other routers.

On the way of a request are `assign`, `deciders`, `begin` and `end` alone. The loop beside it tells what
was seen to the state (`store.py`), lets the rules (`rules.py`) move it and takes up what came of it.

While the state cannot be reached the canary goes on as it was last known, with one exception: a router
that finds the challenger worse, or out, gives it nothing more by itself, and tells the others when it
can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from steersman.agents.evidence import Evidence
from steersman.agents.served_evidence import leave_evidence
from steersman.predictors.features import REQUEST_INDEX
from steersman.serving.canary import rules
from steersman.serving.canary.arm import Arm
from steersman.serving.canary.challenger import Challenger
from steersman.serving.canary.counting import absorb
from steersman.serving.canary.dealer import Dealer
from steersman.serving.canary.metrics import CanaryMetrics
from steersman.serving.canary.outage import Outage
from steersman.serving.canary.pairing import Pairing
from steersman.serving.canary.settings import Start
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import CanaryState, Phase, Transition
from steersman.serving.canary.store import CanaryStore, Change, StoreDown
from steersman.serving.canary.tally import CHAMPION, Tally
from steersman.serving.canary.watching import Watched, Watching
from steersman.serving.config import RouterSettings
from steersman.serving.exchange import Exchange
from steersman.serving.models import ServedModels
from steersman.serving.surface import Work
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Outcome, Request

logger = logging.getLogger("steersman.serving")

_OBJECTIVES = [REQUEST_INDEX["ttft_slo_s"], REQUEST_INDEX["tpot_slo_s"]]

Key = tuple[str, float]
"""Which canary: the challenger, and when it began."""


class Canary:
    """One for the whole router.

    Args:
        settings: of the router.
        champion: who decides otherwise.
        challenger: who is tried.
        store: of the state.
        metrics: told how it stands.
        wall: seconds since 1970; routers agree about it but for some seconds.
    """

    name = "canary"

    def __init__(
        self,
        settings: RouterSettings,
        champion: ServedModels,
        challenger: Challenger,
        store: CanaryStore,
        metrics: CanaryMetrics,
        wall: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._champion = champion
        self._challenger = challenger
        self._store = store
        self._metrics = metrics
        self._wall = wall
        self.state = CanaryState()
        """As last known."""
        self.share = 0.0
        """Of the traffic, that the challenger gets here."""
        self._dealer = Dealer()
        self._key: Key = ("", 0.0)
        self._fault_of: Key | None = None
        self._watching = Watching()
        self._outage = Outage(settings.canary.outage)
        self._pending = Tally()
        self._stop = ""
        """Why this router has stopped it; to be told to the others."""
        self._told = 0.0
        """Time of the newest transition that was logged."""
        self._pairing = Pairing(settings, champion, challenger)
        self._first = True
        self._settled = ""
        """The champion's version at the last step."""
        self._alone = False

    def apply(self, settings: RouterSettings) -> None:
        """From now on these count."""
        self._settings = settings
        self._challenger.apply(settings)
        self._pairing.apply(settings)
        if self._outage.settings != settings.canary.outage:
            self._outage = Outage(settings.canary.outage)

    # On the way of a request.

    def assign(self, request: Request) -> Arm | None:
        """A new request's arm; None: there is no canary."""
        share = self.share
        if share <= 0.0:
            return None
        return self._dealer.deal(request, share, self._settings.canary, self._wall())

    def deciders(self, arm: Arm | None) -> ServedModels:
        """Who decides for it now: after a rollback the champion for everybody."""
        if arm is not None and arm.is_challenger and self.share > 0.0 and not arm.faulty:
            return self._challenger.models or self._champion
        return self._champion

    def broke(self, arm: Arm, error: Exception) -> None:
        """The challenger's code failed; the champion decides instead."""
        arm.faulty = True
        self._metrics.faults.inc()
        if self._fault_of != self._key:  # the first one; a metric counts them
            self._fault_of = self._key
            logger.warning("the challenger failed to decide: %s: %s", type(error).__name__, error)

    def begin(self, exchange: Exchange) -> None:
        """A request is on its way."""
        arm = exchange.prepared.arm
        if arm is not None and self.state.running and exchange.intake.api.work is Work.GENERATE:
            slo = exchange.prepared.features[_OBJECTIVES].tolist()
            watched = Watched(exchange, arm.name, arm.unit, arm.lasting, arm.lot, arm.counts, *slo)
            self._watching.begin(watched)

    def end(self, exchange: Exchange, outcome: Outcome) -> None:
        """It is over."""
        arm = exchange.prepared.arm
        if arm is None:
            return
        told = self._watching.end(exchange, outcome, self.state.limits_s, faulty=arm.faulty)
        if told is None:
            return
        name, failed = told
        self._metrics.requests.labels(name, "failed" if failed else "ok").inc()
        usual = self.state.reference.error_rate(CHAMPION)
        why = self._outage.observe(name, exchange.end_s, failed=failed, usual=usual)
        if why and not self._stop:
            self._stop_here(why)

    # Beside it.

    async def step(self, now_s: float) -> float:
        """Tell what was seen, and take up what came of it."""
        now_unix_s = self._wall()
        await asyncio.to_thread(self._challenger.look)
        if self._first:
            self._first = False
            self._take_up(await self._store.last_known())
        self._watching.look(now_s, self.state.limits_s)
        self._pending.add(self._watching.take())
        key, tally, stop = self._key, self._pending, self._stop
        mismatch = self._pairing.mismatch(self.state, now_unix_s)

        def change(state: CanaryState) -> None:
            state.restore(self.state)
            own = _key(state) == key and state.running
            if own:
                self._move(state, tally, stop, mismatch, now_unix_s)
            self._between(state, now_unix_s)

        try:
            state, _ = await self._store.update(change)
        except StoreDown as error:
            self._go_on_alone(str(error), now_unix_s)
        else:
            self._pending = Tally()
            self._together()
            self._take_up(state)
            await self._leave_evidence()
        self._settled = self._pairing.champion_version
        self._metrics.tell(self.state, self._settings.canary, self.share)
        return self._settings.canary.interval_s

    async def command(self, change: Change[Transition | None]) -> CanaryState:
        """An operator's.

        Raises:
            StoreDown: the state cannot be changed now.
        """

        def restored(state: CanaryState) -> Transition | None:
            state.restore(self.state)
            return change(state)

        state, _ = await self._store.update(restored)
        self._take_up(state)
        self._metrics.tell(self.state, self._settings.canary, self.share)
        return state

    def _move(
        self, state: CanaryState, tally: Tally, stop: str, mismatch: str, now_unix_s: float
    ) -> None:
        """One that runs."""
        options = self._settings.canary
        absorb(state, options, tally, now_unix_s)
        if stop:
            rules.roll_back(state, options, stop, now_unix_s)
        elif mismatch:
            rules.abort(state, options, mismatch, now_unix_s)
        else:
            rules.advance(state, options, now_unix_s)

    def _between(self, state: CanaryState, now_unix_s: float) -> None:
        """One that is over, or has not begun."""
        options = self._settings.canary
        if state.running:
            return
        if state.phase is Phase.PROMOTED:
            version = self._challenger.version
            if self._pairing.taken_over(state):
                rules.finish(state, options, f"{self._pairing.champion_version} is champion", now_unix_s)
            elif version not in {"", state.challenger}:
                rules.finish(state, options, f"the challenger is {version} now", now_unix_s)
            return
        version = self._challenger.version
        new = version not in state.tried and options.start is Start.AUTO
        champion = self._pairing.champion_version
        # A champion that has just come may be one of several steps: the next look is soon.
        if not self._pairing.distinct or champion != self._settled:
            return
        if new or state.start_asked_by:
            rules.start(state, options, version, champion, now_unix_s)

    def _take_up(self, state: CanaryState) -> None:
        """What holds for the next request."""
        if _key(state) != self._key:
            self._key = _key(state)
            self._dealer = Dealer(f"{state.challenger} {state.started_unix_s}")
            self._watching.restart()
            self._pending = Tally()
            self._outage = Outage(self._settings.canary.outage)
            self._stop = ""
        self.state = state
        share = share_of(state, self._settings.canary)
        fits = self._pairing.fits(state)
        self._metrics.ready.set(float(share == 0.0 or fits))
        self.share = share if fits and not self._stop else 0.0
        self._tell()

    def _tell(self) -> None:
        """Log and count the transitions that are new here."""
        transitions = self.state.transitions
        for one in transitions:
            if one.at_unix_s <= self._told:
                continue
            if self._told:
                self._metrics.transitions.labels(one.what).inc()
            level = logging.WARNING if one.what in {"rolled_back", "aborted"} else logging.INFO
            logger.log(
                level,
                "canary: %s %s at %g %% of the traffic: %s",
                *(one.challenger, one.what, 100.0 * one.share, one.reason),
            )
        self._told = max([self._told, 1.0, *(one.at_unix_s for one in transitions)])

    def _stop_here(self, why: str) -> None:
        """At once, on this router; the others are told by the next step."""
        self._stop, self.share = why, 0.0
        logger.warning("canary: %s gets no more requests here: %s", self.state.challenger, why)

    def _go_on_alone(self, problem: str, now_unix_s: float) -> None:
        if not self._alone:
            logger.warning("canary: its state cannot be changed (%s); going on as it is", problem)
        self._alone = True
        self._metrics.alone.set(1.0)
        if self.state.running and not self._stop:
            alone = self.state.model_copy(deep=True)
            options = self._settings.canary
            absorb(alone, options, self._pending, now_unix_s)
            rules.advance(alone, options, now_unix_s)
            if alone.phase is Phase.ROLLED_BACK:
                self._stop_here(alone.transitions[-1].reason)

    def _together(self) -> None:
        if self._alone:
            logger.info("canary: its state can be changed again")
        self._alone = False
        self._metrics.alone.set(0.0)

    async def _leave_evidence(self) -> None:
        """For the registry; a directory that cannot be written is tried again."""
        state = self.state
        if not state.evidence or state.evidence_left:
            return
        directory = self._evidence_directory()
        if directory is not None and "+" not in state.challenger:
            try:
                evidence = Evidence.from_json(state.evidence)
                await asyncio.to_thread(leave_evidence, directory, evidence)
            except ArtifactError as error:
                logger.warning("canary: the evidence cannot be left: %s", error)
                return
        left = state.evidence

        def mark(known: CanaryState) -> None:
            known.evidence_left = known.evidence_left or known.evidence == left

        try:
            self.state, _ = await self._store.update(mark)
        except StoreDown:
            return

    def _evidence_directory(self) -> Path | None:
        options = self._settings.canary
        if options.evidence_directory:
            return Path(options.evidence_directory)
        return Path(options.challenger.bundle).parent if options.challenger.bundle else None


def _key(state: CanaryState) -> Key:
    return state.challenger, state.started_unix_s
