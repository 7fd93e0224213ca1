"""Evidence: what was found out about a challenger, by whom it was compared with, and what follows.

Evaluation, shadow and canary each end in one; `steersman promote` reads them (`gates.py`), and a typed
override is one too, so that nothing becomes champion without a trace of why. Evidence is plain JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

from steersman.traces.errors import ArtifactError

Kind: TypeAlias = Literal["evaluation", "shadow", "canary", "override"]
Verdict: TypeAlias = Literal["better", "no_worse", "worse", "insufficient"]

KINDS: tuple[str, ...] = get_args(Kind)
VERDICTS: tuple[str, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Evidence:
    """One comparison of a challenger with a champion.

    Raises:
        ArtifactError: a field makes no sense; in one line.
    """

    kind: Kind
    challenger: str
    """Version of its bundle (or of a routing configuration)."""
    champion: str
    """Version of the bundle it was compared with; empty for none."""
    verdict: Verdict
    reasons: tuple[str, ...]
    """In plain words; there is at least one."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measured numbers by name, the unit in the name; not finite ones are left out of JSON."""
    made_unix_s: float = 0.0
    """Seconds since 1970 UTC."""
    by: str = ""
    """Who says so: a user for an override, otherwise a part of Steersman."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise _wrong("kind", self.kind, f"use one of {', '.join(KINDS)}")
        if self.verdict not in VERDICTS:
            raise _wrong("verdict", self.verdict, f"use one of {', '.join(VERDICTS)}")
        if not self.challenger:
            raise _wrong("challenger", self.challenger, "name the bundle's version")
        if not self.reasons or not all(reason.strip() for reason in self.reasons):
            raise _wrong("reasons", list(self.reasons), "give at least one, none empty")
        if not math.isfinite(self.made_unix_s) or self.made_unix_s < 0.0:
            raise _wrong("made_unix_s", self.made_unix_s, "give seconds since 1970")

    @property
    def favourable(self) -> bool:
        """Whether it speaks for the challenger."""
        return self.verdict in {"better", "no_worse"}

    def to_json(self) -> str:
        """One JSON object in one line."""
        values = {
            "kind": self.kind,
            "challenger": self.challenger,
            "champion": self.champion,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "figures": {k: float(v) for k, v in self.figures.items() if math.isfinite(v)},
            "made_unix_s": self.made_unix_s,
            "by": self.by,
        }
        return json.dumps(values)

    @staticmethod
    def from_json(text: str | bytes) -> Evidence:
        """The inverse of `to_json`. Keys that a later version added are ignored.

        Raises:
            ArtifactError: not JSON, a key is missing, or a value is of the wrong kind; in one line.
        """
        try:
            values = json.loads(text)
        except ValueError:
            raise ArtifactError("evidence: not valid JSON; record it anew") from None
        if not isinstance(values, dict):
            raise ArtifactError("evidence: not a JSON object; record it anew")
        missing = [key for key in _REQUIRED if key not in values]
        if missing:
            raise ArtifactError(f"evidence: '{missing[0]}' is missing; record it anew")
        return Evidence(
            kind=cast("Kind", _text(values, "kind")),
            challenger=_text(values, "challenger"),
            champion=_text(values, "champion"),
            verdict=cast("Verdict", _text(values, "verdict")),
            reasons=_reasons(values["reasons"]),
            figures=_figures(values.get("figures", {})),
            made_unix_s=_number(values["made_unix_s"], "made_unix_s"),
            by=_text(values, "by") if "by" in values else "",
        )


_REQUIRED = ("kind", "challenger", "champion", "verdict", "reasons", "made_unix_s")


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise _wrong(key, value, "it is text")
    return value


def _reasons(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(reason, str) for reason in value):
        raise _wrong("reasons", value, "it is a list of texts")
    return tuple(value)


def _figures(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _wrong("figures", value, "it maps names to numbers")
    return {name: _number(number, f"figures.{name}") for name, number in value.items()}


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, value, "it is a number")
    return float(value)


def _wrong(key: str, value: Any, fix: str) -> ArtifactError:
    return ArtifactError(f"evidence: '{key}' is {str(value)[:80]!r}; {fix}")
