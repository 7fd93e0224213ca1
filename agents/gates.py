"""The gates before promotion: which evidence a challenger needs (SPEC I5).

A gate is passed by the newest evidence of its kind alone: a comparison that went well once does not
outweigh a later one that did not. Evidence against another champion, or that is too old, counts for
nothing. Without a champion there is nothing to lose live: then the evaluation is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from steersman.agents.evidence import Evidence
from steersman.traces.settings import Settings

DAY_S = 86_400.0


class Live(StrEnum):
    """What a challenger has to have been through beside live traffic."""

    NONE = "none"
    SHADOW = "shadow"
    CANARY = "canary"
    EITHER = "either"
    BOTH = "both"


class GateSettings(Settings):
    """What promotion asks for."""

    evaluation: bool = Field(
        default=True, description="Whether an evaluation must have found it better, or no worse."
    )
    live: Live = Field(
        default=Live.EITHER,
        description="What it must have passed beside live traffic: 'shadow', 'canary', 'either', 'both' "
        "or 'none'.",
    )
    max_age_days: float = Field(
        default=30.0, gt=0, description="Evidence that is older counts for nothing, in days."
    )


@dataclass(frozen=True)
class Gate:
    """One gate, and whether it is passed."""

    name: str
    passed: bool
    why: str


def judge(
    evidence: Sequence[Evidence],
    settings: GateSettings,
    *,
    champions: Sequence[str],
    now_unix_s: float,
) -> tuple[Gate, ...]:
    """Every gate that is asked for.

    Args:
        evidence: of the challenger, in any order.
        settings: which gates there are.
        champions: bundle version of the champion now, and of what its predictors were refitted to since;
            empty for none.
        now_unix_s: to tell what is too old.
    """
    oldest_s = now_unix_s - settings.max_age_days * DAY_S

    def gate(kind: str) -> Gate:
        found = [e for e in evidence if e.kind == kind]
        if not found:
            return Gate(kind, passed=False, why="there is none")
        newest = max(found, key=lambda e: e.made_unix_s)
        said = f"{newest.verdict}: {newest.reasons[0]}"
        if champions and newest.champion not in champions:
            against = newest.champion or "no champion"
            return Gate(kind, passed=False, why=f"it was against {against}, not {champions[0]}")
        if newest.made_unix_s < oldest_s:
            return Gate(kind, passed=False, why=f"it is over {settings.max_age_days:g} days old")
        return Gate(kind, passed=newest.favourable, why=said)

    gates = [gate("evaluation")] if settings.evaluation else []
    if not champions or settings.live is Live.NONE:
        return tuple(gates)
    if settings.live is Live.EITHER:
        both = [gate("shadow"), gate("canary")]
        chosen = next((one for one in both if one.passed), None)
        # One that went badly is not made good by the other one.
        bad = next((one for one in both if one.why.startswith("worse: ")), None)
        why = "; ".join(f"{one.name}: {one.why}" for one in both)
        passed = chosen is not None and bad is None
        return (*gates, Gate("shadow or canary", passed=passed, why=why))
    wanted = ("shadow", "canary") if settings.live is Live.BOTH else (settings.live.value,)
    return (*gates, *(gate(kind) for kind in wanted))
