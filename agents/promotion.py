"""Promotion and rollback: the only ways to a new champion, and both leave a trace.

`promote` asks the gates first. Who knows better says why in words, and that is kept as evidence of the
kind `override` beside the rest. `roll_back` asks nobody and works without the registry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from steersman.agents.evidence import Evidence
from steersman.agents.gates import Gate, GateSettings, judge
from steersman.agents.registry import CHALLENGER, CHAMPION, Registry
from steersman.predictors.bundle import Bundle
from steersman.traces.errors import ArtifactError

LEAST_REASON = 10
"""Characters of the reason for an override: enough for a thought, hard to leave out."""


@dataclass(frozen=True)
class Promoted:
    """A new champion."""

    version: str
    bundle: Bundle
    gates: tuple[Gate, ...]
    override: Evidence | None
    """What was recorded where not every gate was passed."""


@dataclass(frozen=True)
class RolledBack:
    """The champion before serves again."""

    version: str
    bundle: Bundle
    problem: str
    """Why the registry could not be told yet; empty if it was."""


def promote(
    registry: Registry,
    version: str | None = None,
    *,
    gates: GateSettings,
    by: str,
    now_unix_s: float,
    override: str | None = None,
) -> Promoted:
    """Make a version the champion if its evidence allows it.

    Args:
        registry: where it is recorded.
        version: of the registered model; None for the challenger.
        gates: what is asked for.
        by: who promotes.
        now_unix_s: seconds since 1970.
        override: why to promote it although not every gate is passed; None: only if all are.

    Raises:
        ArtifactError: a gate is not passed, there is no such version, or its bundle is damaged.
    """
    if override is not None and len(override.strip()) < LEAST_REASON:
        raise ArtifactError(
            f"--override '{override}': is no reason; say in a sentence why the gates do not count"
        )
    registry.store.check_exists()
    version = version or registry.version_of(CHALLENGER)
    if version is None:
        raise ArtifactError(
            f"{registry.store.place}: there is no challenger; record one with 'steersman train', or "
            "name a version ('steersman models' lists them)"
        )
    bundle_version = registry.bundle_version(version)
    against = _champions(registry, version)
    asked = judge(registry.evidence(version), gates, champions=against, now_unix_s=now_unix_s)
    failed = [gate for gate in asked if not gate.passed]
    if failed and override is None:
        why = "; ".join(f"{gate.name}: {gate.why}" for gate in failed)
        raise ArtifactError(
            f"version {version} may not become champion: {why}; bring the evidence, or say why it does "
            "not count with --override 'REASON'"
        )
    said = None
    if override is not None:
        said = Evidence(
            kind="override",
            challenger=bundle_version or version,
            champion=against[0] if against else "",
            verdict="insufficient" if failed else "no_worse",
            reasons=(override.strip(), *(f"{gate.name}: {gate.why}" for gate in failed)),
            made_unix_s=now_unix_s,
            by=by,
        )
        # Before it serves: no override without a trace, even if what follows fails.
        registry.record_evidence(version, said)
    reason = f"override: {override.strip()}" if override is not None else _summary(asked)
    bundle = registry.promote(version, by=by, reason=reason, now_unix_s=now_unix_s)
    return Promoted(version, bundle, asked, said)


def roll_back(registry: Registry, *, by: str, reason: str, now_unix_s: float) -> RolledBack:
    """Serve the champion before again, and tell the registry; if that does not answer, later.

    Raises:
        ArtifactError: there is none, or the served directory cannot be written.
    """
    bundle, version = registry.served.roll_back()
    try:
        registry.set_champion(version, by=by, reason=f"rollback: {reason}", now_unix_s=now_unix_s)
    except ArtifactError as error:
        return RolledBack(version, bundle, str(error))
    registry.served.told()
    return RolledBack(version, bundle, "")


def _champions(registry: Registry, version: str) -> list[str]:
    """Names under which the champion serves; none where there is no other champion."""
    champion = registry.version_of(CHAMPION)
    if champion is None or champion == version:
        return []
    names = [registry.bundle_version(champion)]
    with contextlib.suppress(ArtifactError):  # a damaged directory says nothing
        served = registry.served.bundle(CHAMPION)
        if served is not None and registry.served.record().versions.get(CHAMPION) == champion:
            names.append(served.version)
    return names


def _summary(gates: Sequence[Gate]) -> str:
    return "; ".join(f"{gate.name}: {gate.why}" for gate in gates) or "no gates are asked for"
