"""Taking up a changed configuration while requests are under way (SPEC D5).

The new file is read and everything in it is tried first, as at a start, but beside the router that
serves: a file that is wrong changes nothing and is told in the log and the metrics. Then all of it takes
effect between two requests. A request under way keeps its replica; a replica that is no longer listed
finishes what it has; a policy begins anew only where it was changed. Certificates of replicas are read
again, too.

What cannot be changed while it runs (addresses, the outcome log, …) is named in the log and stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from steersman.serving.access.settings import AccessSettings
from steersman.serving.config import OutcomeLogSettings, RefitSettings, RouterSettings
from steersman.serving.parts import Parts, build_parts
from steersman.serving.shadow.settings import ShadowSettings
from steersman.serving.shared.settings import SharedSettings
from steersman.serving.tls import ListenerTlsSettings
from steersman.traces.errors import ConfigError

logger = logging.getLogger("steersman.serving")

LIVE = frozenset(
    (
        "backends",
        "discovery",
        "aliases",
        "fallback_models",
        "profile",
        "policy",
        "guard",
        "bundle",
        "canary",
        "scrape",
        "health",
        "breaker",
        "outliers",
        "slow_start",
        "timeouts",
        "queue",
        "retries",
        "hedging",
        "limits",
        "objectives",
    )
)
"""Sections that take effect at once; all others take a restart."""
FIXED = {
    "limits": ("connections_per_replica",),
    "canary": ("enabled", "state_file"),
    "policy": ("compiled",),
}
"""Keys within them that take a restart all the same."""
_UNREHEARSED = {
    "tokenizer": "",
    "access": AccessSettings(),
    "shared": SharedSettings(),
    "tls": ListenerTlsSettings(),
}
"""Sections that take a restart, and would have files read that have a watch of their own."""


@dataclass(frozen=True)
class Reloaded:
    """What came of it."""

    ok: bool
    changed: tuple[str, ...] = ()
    """Sections that took effect."""
    needs_restart: tuple[str, ...] = ()
    """Keys that differ and did not."""
    problem: str = ""
    """Why the former configuration serves on; one line."""


class Reloader:
    """Reads the configuration again, when asked.

    Args:
        parts: the router that serves.
        read: reads and checks the file; raises ConfigError.
    """

    def __init__(self, parts: Parts, read: Callable[[], RouterSettings]) -> None:
        self._parts = parts
        self._read = read
        self._lock = asyncio.Lock()
        self.accepted: RouterSettings | None = None
        """What was read last and is right; of it counts what does not take a restart."""

    async def reload(self) -> Reloaded:
        """Do it; never raises for what is wrong with the file. One at a time."""
        async with self._lock:
            try:
                result = await self._reload()
            except ConfigError as error:
                result = Reloaded(ok=False, problem=str(error))
        self._tell(result)
        return result

    async def _reload(self) -> Reloaded:
        parts = self._parts
        wanted = await asyncio.to_thread(self._read)
        settings, needs_restart = merged(parts.settings, wanted)
        changed = tuple(key for key in sorted(LIVE) if differs(key, parts.settings, settings))
        await asyncio.to_thread(rehearse, settings.model_copy(update=_UNREHEARSED))
        certificates = await asyncio.to_thread(parts.fleet.read_certificates, settings.backends)
        parts.fleet.take_certificates(certificates)
        await parts.apply(settings)
        self.accepted = wanted
        return Reloaded(ok=True, changed=changed, needs_restart=needs_restart)

    def _tell(self, result: Reloaded) -> None:
        metrics = self._parts.metrics
        metrics.reloads.labels("loaded" if result.ok else "refused").inc()
        metrics.reload_ok.set(float(result.ok))
        if not result.ok:
            logger.error("configuration refused: %s; the former one serves on", result.problem)
            return
        logger.warning("configuration loaded; changed: %s", ", ".join(result.changed) or "nothing")
        if result.needs_restart:
            logger.warning("not changed without a restart: %s", ", ".join(result.needs_restart))


def merged(now: RouterSettings, wanted: RouterSettings) -> tuple[RouterSettings, tuple[str, ...]]:
    """What is to serve: the wanted settings, but for those that take a restart; and their keys."""
    kept = {key: getattr(now, key) for key in RouterSettings.model_fields if key not in LIVE}
    # The worker that refits the models of a bundle was told where it is.
    fixed = FIXED | ({"bundle": ("directory",)} if now.refit.enabled else {})
    needs_restart = [key for key in kept if differs(key, now, wanted)]
    for section, keys in fixed.items():
        old, new = getattr(now, section), getattr(wanted, section)
        kept[section] = new.model_copy(update={key: getattr(old, key) for key in keys})
        needs_restart += [f"{section}.{key}" for key in keys if differs(key, old, new)]
    return wanted.model_copy(update=kept), tuple(needs_restart)


def differs(key: str, one: object, other: object) -> bool:
    """Whether two settings differ in it."""
    return bool(getattr(one, key) != getattr(other, key))


def rehearse(settings: RouterSettings) -> None:
    """Put a second router together and throw it away: what could fail has failed then.

    Raises:
        ConfigError: as at a start.
    """
    beside = {
        "outcome_log": OutcomeLogSettings(),
        "refit": RefitSettings(),
        "shadow": ShadowSettings(),
        # Nothing is read or written there before the first step.
        "canary": settings.canary.model_copy(update={"state_file": "beside"}),
    }
    build_parts(settings.model_copy(update=beside))
