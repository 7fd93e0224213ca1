"""`serve --check`: does every backend answer as the router needs it to?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from steersman.env.engine_metrics import parse_metrics
from steersman.serving.config import RouterSettings
from steersman.serving.health import read_cards
from steersman.serving.parts import build_parts
from steersman.serving.replica import Replica
from steersman.serving.upstream import Upstream
from steersman.traces.errors import BackendError


@dataclass
class ProbeResult:
    """What one backend answered."""

    id: str
    url: str
    models: list[str] = field(default_factory=list)
    engine: str = ""
    """Dialect of its metrics page."""
    problems: list[str] = field(default_factory=list)


async def probe(settings: RouterSettings) -> list[ProbeResult]:
    """Ask every backend for its health, its models and its metrics; those that discovery finds too.

    Raises:
        ConfigError: as `create_app`; the outcome log is not touched.
    """
    quiet = settings.model_copy(
        update={"outcome_log": settings.outcome_log.model_copy(update={"directory": ""})}
    )
    parts = build_parts(quiet)
    timeout_s = settings.health.timeout_s
    async with Upstream(settings.timeouts, settings.limits) as upstream:
        searches = list(parts.searches.loops.values())
        await asyncio.gather(*(search.step(parts.clock()) for search in searches))
        blind = [ProbeResult(s.name, "", problems=[s.problem]) for s in searches if s.problem]
        tasks = (_probe(replica, upstream, timeout_s) for replica in parts.fleet.replicas)
        return [*blind, *await asyncio.gather(*tasks)]


async def _probe(replica: Replica, upstream: Upstream, timeout_s: float) -> ProbeResult:
    result = ProbeResult(replica.id, replica.url)

    async def attempt(work: Awaitable[None]) -> None:
        try:
            await work
        except BackendError as error:
            result.problems.append(str(error))

    async def health() -> None:
        if replica.settings.health_path:
            await upstream.get(replica, replica.settings.health_path, timeout_s=timeout_s)

    async def models() -> None:
        page = await upstream.get(replica, "/v1/models", timeout_s=timeout_s)
        replica.take_cards(read_cards(page))
        result.models = list(replica.cards)
        missing = [model for model in replica.settings.models if model not in result.models]
        if missing:
            raise BackendError(f"does not serve '{missing[0]}' (models); it serves {result.models}")

    async def metrics() -> None:
        if replica.settings.metrics_path:
            path = replica.settings.metrics_path
            result.engine = parse_metrics(await upstream.get(replica, path, timeout_s=timeout_s)).dialect

    for work in (health(), models(), metrics()):
        await attempt(work)
    return result
