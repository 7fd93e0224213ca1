"""The router's parts, put together from its settings, and their life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steersman.env.profiles import load_profile, with_limits
from steersman.predictors import ledger as L
from steersman.predictors.blocks import BLOCK_TOKENS
from steersman.predictors.past import Past
from steersman.predictors.tokens import CalibratedCounter, TokenCounter, TokenizerCounter
from steersman.predictors.wording import Wording
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import RouterSettings
from steersman.serving.discovery.loop import DiscoveryLoop, make_searches
from steersman.serving.gate import Gate
from steersman.serving.health import HealthCheck, HealthMonitor
from steersman.serving.loops import Clock, ControlLoop, run_loop, step_safely
from steersman.serving.membership import Membership
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import BundleWatch, ServedModels
from steersman.serving.online import OnlineErrors
from steersman.serving.pool import Fleet
from steersman.serving.proxy import Proxy
from steersman.serving.recorder import Recorder
from steersman.serving.refit import RefitLoop
from steersman.serving.replica import Replica
from steersman.serving.router import Router
from steersman.serving.scraper import Scraper
from steersman.serving.silence import SilenceWatch
from steersman.serving.upstream import Upstream
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.schema import HardwareProfile

logger = logging.getLogger("steersman.serving")


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
    gate: Gate
    proxy: Proxy
    recorder: Recorder
    upstream: Upstream
    monitor: HealthMonitor
    errors: OnlineErrors
    refit: RefitLoop | None
    log: OutcomeLogWriter | None
    membership: Membership
    """Has the health checks and scrapers of every replica."""
    searches: list[DiscoveryLoop]
    """Discovery."""
    silence: SilenceWatch
    watches: list[ControlLoop]
    """All other loops, that one among them."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connections open, loops running; every loop has done its first step before this begins."""
        async with self.upstream, self.membership:
            loops = [*self.searches, *self.watches, self.membership]
            # The first step decides which replicas there are, which take traffic, which models serve.
            pauses = await asyncio.gather(*(step_safely(loop, self.clock) for loop in loops))
            await self.membership.checked()
            self.router.warm_up()
            self._tell_start()
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
                await self.silence.close()
                if self.refit is not None:
                    self.refit.close()
                if self.log is not None:
                    await asyncio.to_thread(self.log.close)

    @property
    def checks(self) -> list[ControlLoop]:
        """Health checks and scrapers, in the order of the replicas."""
        return [loop for loops in self.membership.loops.values() for loop in loops]

    def health_report(self) -> dict[str, Any]:
        """What `/health` answers: names and counts, no addresses."""
        now_s = self.clock()
        replicas = {
            state.replica_id: {
                "healthy": state.healthy,
                "inflight": state.inflight,
                "metrics_age_s": round(state.age_s, 3) if state.age_s < 1e9 else None,
            }
            for state in (self.fleet.describe(replica, now_s) for replica in self.fleet.replicas)
        }
        pools = {
            model: {
                "replicas": len(pool.ids),
                "healthy": int((self.fleet.state[pool.rows, L.HEALTHY] > 0).sum()),
            }
            for model, pool in self.fleet.pools.items()
        }
        served = [pool["healthy"] > 0 for pool in pools.values()]
        well = all(replica["healthy"] for replica in replicas.values())
        status = (
            "ok" if served and all(served) and well else "degraded" if any(served) else "unavailable"
        )
        return {"status": status, "bundle": self.models.version, "pools": pools, "replicas": replicas}

    def _tell_start(self) -> None:
        well = sum(replica.health.healthy for replica in self.fleet.replicas)
        count, models = len(self.fleet.replicas), ", ".join(self.fleet.pools) or "no model yet"
        logger.info("%d of %d replicas are well; serving %s", well, count, models)


def build_parts(settings: RouterSettings, clock: Clock = time.monotonic) -> Parts:
    """Put the router together; opens no connection.

    Raises:
        ConfigError: see `create_app`.
    """
    metrics = RouterMetrics()
    profiles = [_profile(backend, settings) for backend in settings.backends]
    fleet = Fleet(
        settings.backends,
        profiles,
        settings.health,
        block_tokens=BLOCK_TOKENS,
        aliases=settings.aliases,
    )
    metrics.watch(fleet, clock)
    models = ServedModels(settings.policy, settings.guard, metrics, clock)
    counter = TokenizerCounter(settings.tokenizer) if settings.tokenizer else CalibratedCounter()
    wording = Wording()
    past = Past()
    upstream = Upstream(settings.timeouts, settings.limits, clock)
    monitor = HealthMonitor(fleet, metrics)
    router = Router(fleet, models, past, metrics, clock)
    gate = Gate(settings.queue, router, metrics, clock)
    fleet.eased = gate.eased
    log = _open_log(settings, metrics)

    def loops_of(replica: Replica) -> list[ControlLoop]:
        loops: list[ControlLoop] = [HealthCheck(replica, fleet, monitor, upstream, settings.health)]
        if replica.settings.metrics_path:
            rng = random.Random(f"{settings.policy.seed} {replica.id}")
            loops.append(Scraper(replica, fleet, upstream, settings.scrape, metrics, clock, rng))
        return loops

    membership = Membership(
        fleet,
        loops_of,
        lambda backend: _profile(backend, settings),
        metrics,
        clock,
        sources=settings.discovery.sources,
    )
    silence = SilenceWatch(fleet, monitor, upstream, settings.health, clock)
    errors = OnlineErrors(metrics)
    watches: list[ControlLoop] = [silence]
    if settings.bundle.directory:
        directory = Path(settings.bundle.directory)
        watches.append(BundleWatch(directory, models, settings.bundle, metrics))
    refit = RefitLoop(settings, errors, models, metrics) if settings.refit.enabled else None
    if refit is not None:
        watches.append(refit)
    return Parts(
        settings=settings,
        clock=clock,
        metrics=metrics,
        fleet=fleet,
        models=models,
        counter=counter,
        wording=wording,
        router=router,
        gate=gate,
        proxy=Proxy(settings, fleet, gate, upstream, monitor, metrics, clock),
        recorder=Recorder(past, counter, wording, metrics, errors, log, clock),
        upstream=upstream,
        monitor=monitor,
        errors=errors,
        refit=refit,
        log=log,
        membership=membership,
        searches=make_searches(settings.discovery, membership, metrics),
        silence=silence,
        watches=watches,
    )


def _profile(backend: BackendSettings, settings: RouterSettings) -> HardwareProfile:
    """A backend's profile, with the limits its engine was started with."""
    return with_limits(
        load_profile(backend.profile or settings.profile),
        max_num_seqs=backend.max_num_seqs,
        max_batched_tokens=backend.max_batched_tokens,
    )


def _open_log(settings: RouterSettings, metrics: RouterMetrics) -> OutcomeLogWriter | None:
    options = settings.outcome_log
    if not options.directory:
        return None
    log = OutcomeLogWriter(
        options.directory,
        segment_bytes=options.segment_bytes,
        total_bytes=options.total_bytes,
        flush_interval_s=options.flush_interval_s,
    )
    metrics.watch_value("outcome_log_dropped", "Records lost", lambda: float(log.dropped))
    metrics.watch_value("outcome_log_errors", "Failed writes", lambda: float(log.write_errors))
    metrics.watch_value("outcome_log_queued", "Records not yet on disk", lambda: float(log.queued))
    return log
