"""The worker between registry and routers: follows the aliases, writes the served directories.

It runs beside the routers of a machine (`steersman registry watch`), so that they need neither MLflow
nor its imports. Whatever goes wrong, the directories stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from steersman.agents.gates import GateSettings
from steersman.agents.promotion import promote
from steersman.agents.registry import CHALLENGER, CHAMPION, Registry
from steersman.agents.served_evidence import forget_evidence, waiting_evidence
from steersman.traces.errors import ArtifactError

logger = logging.getLogger("steersman.registry")

BY = "registry watch"


@dataclass(frozen=True)
class Looked:
    """What a look at the registry did."""

    installed: tuple[str, ...] = ()
    """`champion` and `challenger`, those that were replaced."""
    recorded: int = 0
    """Evidence of routers that was taken to the registry."""
    promoted: str = ""
    """Version that a canary has made champion."""
    problem: str = ""
    """In one line; empty if all went well."""


class RegistryWatch:
    """Looks at the registry; one per machine with routers.

    Args:
        registry: what it follows, and where it writes.
        wall: seconds since 1970.
        promotes: gates by which a challenger that passed its canary becomes champion; None: never by
            itself.
    """

    def __init__(
        self, registry: Registry, wall: Callable[[], float], *, promotes: GateSettings | None = None
    ) -> None:
        self._registry = registry
        self._wall = wall
        self._promotes = promotes
        self._said = ""

    def step(self) -> Looked:
        """Take evidence there, bring bundles here. A fault is logged once, and tried again next time."""
        installed: list[str] = []
        recorded, promoted, problems = 0, "", []
        try:
            self._tell_rollback()
            recorded, promoted = self._take_evidence()
        except ArtifactError as error:
            problems.append(str(error))
        for alias in (CHAMPION, CHALLENGER):
            try:
                if self._follow(alias):
                    installed.append(alias)
            except ArtifactError as error:
                problems.append(f"{alias}: {error}")
        problem = "; ".join(dict.fromkeys(problems))
        if problem and problem != self._said:
            logger.warning("%s; what serves goes on serving", problem)
        self._said = problem
        return Looked(tuple(installed), recorded, promoted, problem)

    def _follow(self, alias: str) -> bool:
        """Install the bundle of an alias if it is another one than before."""
        registry, served = self._registry, self._registry.served
        if alias == CHAMPION and served.record().untold:
            return False  # the registry does not know yet that it was rolled back
        version = registry.version_of(alias)
        if version is None:
            return False
        if served.record().versions.get(alias) == version and self._is_sound(alias):
            return False
        bundle = served.install(alias, registry.bundle(version), version)
        logger.info("%s is version %s now, bundle %s", alias, version, bundle.version)
        return True

    def _is_sound(self, alias: str) -> bool:
        try:
            return self._registry.served.bundle(alias) is not None
        except ArtifactError:
            return False

    def _tell_rollback(self) -> None:
        version = self._registry.served.record().untold
        if version:
            reason = "rollback while the registry did not answer"
            self._registry.set_champion(version, by=BY, reason=reason, now_unix_s=self._wall())
            self._registry.served.told()
            logger.warning("the registry has been told that version %s is champion again", version)

    def _take_evidence(self) -> tuple[int, str]:
        """What routers found out goes to the version it is about."""
        recorded, promoted = 0, ""
        for path, evidence in waiting_evidence(self._registry.served.root):
            version = self._registry.find(evidence.challenger)
            if version is None:
                logger.warning("%s: no version has bundle %s", path.name, evidence.challenger)
                forget_evidence(path)
                continue
            if evidence not in self._registry.evidence(version):
                self._registry.record_evidence(version, evidence)
                recorded += 1
            if evidence.kind == "canary" and evidence.favourable:
                promoted = self._promote(version) or promoted
            forget_evidence(path)
        return recorded, promoted

    def _promote(self, version: str) -> str:
        if self._promotes is None or self._registry.version_of(CHAMPION) == version:
            return ""
        now_unix_s = self._wall()
        try:
            promote(self._registry, version, gates=self._promotes, by="canary", now_unix_s=now_unix_s)
        except ArtifactError as error:
            logger.warning("passed its canary, but %s", error)
            return ""
        return version
