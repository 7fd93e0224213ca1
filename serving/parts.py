"""The router's parts, put together from its settings, and their life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from steersman.predictors.blocks import BLOCK_TOKENS
from steersman.predictors.past import Past
from steersman.predictors.tokens import CalibratedCounter, TokenCounter, TokenizerCounter
from steersman.predictors.wording import Wording
from steersman.serving.access.gate import Gate
from steersman.serving.access.watch import KeyWatch
from steersman.serving.affinity.affinity import Affinity
from steersman.serving.affinity.store import HomeStore, MemoryHomes, SharedHomes
from steersman.serving.canary.canary import Canary
from steersman.serving.canary.make import make_canary
from steersman.serving.compaction import CompactionLoop
from steersman.serving.compilation import Compilation
from steersman.serving.config import RouterSettings
from steersman.serving.deadlines import Deadlines
from steersman.serving.discovery.loop import Searches
from steersman.serving.health import HealthMonitor
from steersman.serving.health_report import health_report
from steersman.serving.limits.limiter import Limiter
from steersman.serving.limits.memory import MemoryLimits
from steersman.serving.limits.shared import LeaseRenewal, SharedLimits
from steersman.serving.limits.store import LimitStore
from steersman.serving.loops import Clock, ControlLoop, run_loop, step_safely
from steersman.serving.membership import Membership
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import BundleWatch, ServedModels
from steersman.serving.online import OnlineErrors
from steersman.serving.outcome_log import Overflows, open_outcomes
from steersman.serving.outliers import OutlierWatch
from steersman.serving.pool import Fleet
from steersman.serving.proxy import Proxy
from steersman.serving.recorder import Recorder
from steersman.serving.refit import RefitLoop
from steersman.serving.replica_parts import ReplicaParts, profile_of
from steersman.serving.router import Router
from steersman.serving.shadow.open import open_shadow
from steersman.serving.shadow.shadow import Shadow
from steersman.serving.shared.server import SharedServer
from steersman.serving.silence import SilenceWatch
from steersman.serving.tls import ListenerTls
from steersman.serving.trust import Trust
from steersman.serving.upstream import Upstream
from steersman.serving.waiting_room import WaitingRoom
from steersman.serving.workers.board import Seat
from steersman.serving.workers.pages import WorkerPages
from steersman.traces.outcome_log import OutcomeLogWriter

if TYPE_CHECKING:
    from steersman.serving.workers.team import Team

logger = logging.getLogger("steersman.serving")

RESPONSES_S = 86_400.0
"""For so long it is remembered which replica made a response."""


@dataclass
class Parts:
    """Everything a request meets, and the loops beside it."""

    settings: RouterSettings
    clock: Clock
    metrics: RouterMetrics
    fleet: Fleet
    models: ServedModels
    counter: TokenCounter
    wording: Wording
    router: Router
    compilation: Compilation
    waiting_room: WaitingRoom
    proxy: Proxy
    recorder: Recorder
    upstream: Upstream
    monitor: HealthMonitor
    errors: OnlineErrors
    refit: RefitLoop | None
    log: OutcomeLogWriter | None
    compaction: CompactionLoop | None
    shadow: Shadow | None
    """Challengers that look on."""
    gate: Gate
    """Knows the API keys."""
    limiter: Limiter
    affinity: Affinity
    shared: SharedServer | None
    tls: ListenerTls | None
    """Towards clients."""
    membership: Membership
    """Has the health checks and scrapers of every replica."""
    each: ReplicaParts
    searches: Searches
    """Discovery."""
    silence: SilenceWatch
    outliers: OutlierWatch
    bundles: BundleWatch
    canary: Canary | None
    watches: list[ControlLoop]
    """All other loops, those among them."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    """Of all requests."""
    pages: WorkerPages | None = None
    """Of all workers, where there are several."""
    team: Team | None = None
    """The other workers, where there are several."""
    is_last: bool = True
    """Nobody writes these logs when this router has ended."""
    draining: bool = False
    """The router is about to stop: load balancers are told to send no more."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connections open, loops running; every loop has done its first step before this begins."""
        async with self.upstream, self.membership:
            loops = [*self.watches, self.membership]
            # The first step decides which replicas there are, which take traffic, which models serve.
            looking = asyncio.create_task(self.searches.start())
            pauses = await asyncio.gather(*(step_safely(loop, self.clock) for loop in loops))
            await looking
            await self.membership.checked()
            for replica in self.fleet.replicas:  # who was there before us is not new
                replica.standing.warming_since_s = -math.inf
            self.router.warm_up()
            self._tell_start()
            if self.shadow is not None:
                self.shadow.start()
            tasks = [
                asyncio.create_task(run_loop(loop, self.clock, pause_s), name=loop.name)
                for loop, pause_s in zip(loops, pauses, strict=True)
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if self.team is not None:
                    self.team.close()
                await self.searches.close()
                await self.silence.close()
                if self.shared is not None:
                    await self.shared.close()
                if self.refit is not None:
                    self.refit.close()
                if self.shadow is not None:
                    await asyncio.to_thread(self.shadow.close, last=self.is_last)
                if self.compaction is not None:
                    self.compaction.close()
                self.compilation.close()
                if self.log is not None:
                    await asyncio.to_thread(self.log.close, last=self.is_last)

    async def apply(self, settings: RouterSettings) -> None:
        """These settings count from now on, but for those that take a restart (see `reload.py`). Nothing
        waits until all of it has taken effect, but for new places to look for replicas in.

        Raises:
            ConfigError: something in them is wrong; to be found out before.
        """
        self.models.apply(settings.policy, settings.guard)
        self.settings = settings
        if self.canary is not None:
            self.canary.apply(settings)
        self.fleet.apply(settings.health, settings.breaker, settings.aliases)
        self.fleet.trust.outliers = self.outliers.settings = settings.outliers
        self.fleet.trust.slow_start = settings.slow_start
        self.silence.settings = settings.health
        self.upstream.apply(settings.timeouts)
        self.proxy.apply(settings)
        self.waiting_room.apply(settings.queue)
        self.fleet.stand_ins = settings.fallback_models
        self.each.apply(settings, self.checks)
        self.membership.renew(settings.backends)
        await self.searches.replace(settings.discovery)
        if self.bundles.apply(settings.bundle):
            await self.bundles.step(self.clock())

    @property
    def checks(self) -> list[ControlLoop]:
        """Health checks and scrapers, in the order of the replicas."""
        return [loop for loops in self.membership.loops.values() for loop in loops]

    def health_report(self) -> dict[str, Any]:
        """What `/health` answers."""
        report = health_report(self.fleet, self.models.version, self.clock())
        report["features"] = {"by": self.compilation.by, "reason": self.compilation.reason}
        return report | {"status": "draining"} if self.draining else report

    def _tell_start(self) -> None:
        well = sum(replica.health.healthy for replica in self.fleet.replicas)
        count, models = len(self.fleet.replicas), ", ".join(self.fleet.pools) or "no model yet"
        logger.info("%d of %d replicas are well; serving %s", well, count, models)


def build_parts(
    settings: RouterSettings,
    clock: Clock = time.monotonic,
    seat: Seat | None = None,
    overflows: Overflows | None = None,
) -> Parts:
    """Put the router together; opens no connection. `seat` and `overflows` of one of several workers.

    Raises:
        ConfigError: see `create_app`.
    """
    metrics = RouterMetrics()
    profiles = [profile_of(backend, settings.profile) for backend in settings.backends]
    fleet = Fleet(
        settings.backends,
        profiles,
        settings.health,
        block_tokens=BLOCK_TOKENS,
        aliases=settings.aliases,
        breaker=settings.breaker,
        trust=Trust(settings.outliers, settings.slow_start),
        seat=seat,
    )
    fleet.stand_ins = settings.fallback_models
    metrics.watch(fleet, clock)
    models = ServedModels(settings.policy, settings.guard, metrics, clock)
    counter = TokenizerCounter(settings.tokenizer) if settings.tokenizer else CalibratedCounter()
    wording = Wording()
    past = Past()
    upstream = Upstream(settings.timeouts, settings.limits, clock)
    monitor = HealthMonitor(fleet, metrics, clock)
    shared = SharedServer(settings.shared, metrics, clock) if settings.shared.url else None
    affinity = _affinity(settings, shared, metrics, clock)
    canary = make_canary(settings, models, shared, metrics, clock)
    router = Router(fleet, models, past, metrics, clock, affinity, canary)
    waiting_room = WaitingRoom(settings.queue, router, metrics, clock)
    fleet.eased = waiting_room.eased
    log = open_outcomes(settings, metrics, overflows)

    each = ReplicaParts(settings, fleet, monitor, upstream, metrics, clock)
    membership = Membership(fleet, each.loops, each.profile, metrics, clock)
    silence = SilenceWatch(fleet, monitor, upstream, settings.health, clock)
    errors = OnlineErrors(metrics)
    outliers = OutlierWatch(fleet, settings.outliers, metrics)
    bundles = BundleWatch(models, settings.bundle, metrics)
    compilation = Compilation(settings.policy, metrics, router.calculate_by)
    watches: list[ControlLoop] = [silence, outliers, bundles, compilation]
    if canary is not None:
        watches.append(canary)
    gate = Gate()
    if settings.access.key_file:
        watches.append(KeyWatch(settings.access, gate, metrics))
    tls = ListenerTls(settings.tls) if settings.tls.cert_file else None
    if tls is not None:
        watches.append(tls)
    limits: LimitStore = MemoryLimits(clock)
    if shared is not None:
        limits = SharedLimits(shared, metrics, clock)
        watches.append(LeaseRenewal(limits))
    refit = RefitLoop(settings, errors, models, metrics) if settings.refit.enabled else None
    if refit is not None:
        watches.append(refit)
    compaction = None
    if log is not None and settings.outcome_log.compact:
        compaction = CompactionLoop(settings.outcome_log, metrics)
        watches.append(compaction)
    shadow, shadow_watch = open_shadow(settings, metrics, clock, overflows)
    if shadow_watch is not None:
        watches.append(shadow_watch)
    return Parts(
        settings=settings,
        clock=clock,
        metrics=metrics,
        fleet=fleet,
        models=models,
        counter=counter,
        wording=wording,
        router=router,
        compilation=compilation,
        waiting_room=waiting_room,
        proxy=Proxy(settings, fleet, router, waiting_room, upstream, monitor, metrics, clock),
        recorder=Recorder(
            past,
            counter,
            wording,
            metrics,
            errors,
            log,
            clock,
            shadow,
            canary,
            settings.outcome_log.prompt_text_bytes if settings.outcome_log.prompt_text else 0,
        ),
        upstream=upstream,
        monitor=monitor,
        errors=errors,
        refit=refit,
        log=log,
        compaction=compaction,
        shadow=shadow,
        gate=gate,
        limiter=Limiter(limits, metrics),
        affinity=affinity,
        shared=shared,
        tls=tls,
        membership=membership,
        each=each,
        searches=Searches(settings.discovery, membership, metrics, clock),
        silence=silence,
        outliers=outliers,
        bundles=bundles,
        canary=canary,
        watches=watches,
        is_last=overflows is None,
    )


def _affinity(
    settings: RouterSettings, shared: SharedServer | None, metrics: RouterMetrics, clock: Clock
) -> Affinity:
    options = settings.affinity

    def homes(timeout_s: float) -> HomeStore:
        if shared is None:
            return MemoryHomes(timeout_s, options.most_groups, clock)
        return SharedHomes(shared, timeout_s, options.most_groups, clock)

    groups = homes(options.timeout_s)
    metrics.watch_value("affinity_groups", "Groups remembered here", lambda: float(len(groups)))
    return Affinity(options, groups, homes(RESPONSES_S), metrics, clock)
