"""What a challenger would have done with one request (SPEC I4), as the shadow log holds it.

A line of the shadow log belongs to the line of the outcome log with the same request id and time of
decision; what was known then stands only there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.traces.errors import TraceError
from steersman.traces.framing import Damage, read_frames
from steersman.traces.outcome_segments import segments

STEM = "shadow"
"""Segments are called `shadow-*.log`."""
DIRECTORY = "shadow"
"""Of the shadow log, within that of the outcome log."""
NAN = math.nan


def _unknown() -> NDArray[np.float64]:
    return np.full(4, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class ShadowRecord:
    """A challenger's opinion on a decision that the champion made. n: candidates. Unknown is NaN."""

    request_id: str
    decided_at_s: float
    """Of the decision, on the router's clock: `OutcomeRecord.decided_at_s`."""
    challenger: str
    """Version of its bundle."""
    model: str = ""
    champion_choice: int = -1
    """What was done: an index into `OutcomeRecord.replica_ids`."""
    choice: int = -1
    """What the challenger would have done; -1: nothing."""
    policy: str = ""
    """That made this choice: the guard's fallback, if it fell back."""
    fallback_reason: str = ""
    propensity: float = NAN
    """Chance with which it makes this choice."""
    scores: NDArray[np.float32] | None = None
    """(n,), higher is better; None where the policy does not score."""
    probabilities: NDArray[np.float32] | None = None
    """(n,): chance of every candidate; None where only that of the choice is known."""
    output_p50: float = NAN
    """Its prediction of output tokens."""
    output_p90: float = NAN
    own: NDArray[np.float64] = field(default_factory=_unknown)
    """(4,): its TTFT and TPOT for its own choice, seconds, in the order of `LATENCY_OUTPUTS`, without
    the widening of p90 that a serving model learns from its outcomes."""
    champions: NDArray[np.float64] = field(default_factory=_unknown)
    """(4,): the same for what was done."""
    error: str = ""
    """Why it has no opinion; one line."""

    @property
    def agrees(self) -> bool:
        """Whether it would have done the same."""
        return self.choice == self.champion_choice

    @property
    def key(self) -> tuple[str, float]:
        """Of the decision."""
        return self.request_id, self.decided_at_s

    def to_json(self) -> bytes:
        """One JSON object without line breaks; what is not finite is null.

        Raises:
            TypeError: a value that is not JSON (a lone surrogate in a name, for example).
        """
        values = {name: getattr(self, name) for name in _NAMES}
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)

    @staticmethod
    def from_json(data: bytes) -> ShadowRecord:
        """The inverse of `to_json`. Fields added by a later version are ignored.

        Raises:
            ValueError: not JSON, not an object, a required field missing, or a value of the wrong kind.
        """
        values = orjson.loads(data)
        if not isinstance(values, dict):
            raise ValueError("not an object")
        try:
            return ShadowRecord(
                **{name: _typed(name, values[name]) for name in _NAMES if name in values}
            )
        except (TypeError, ValueError) as error:
            raise ValueError(str(error)) from None


_NAMES = tuple(f.name for f in fields(ShadowRecord))
_FLOATS = frozenset(f.name for f in fields(ShadowRecord) if f.type == "float")
_ARRAYS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("scores", "probabilities"), partial(np.array, dtype=np.float32)),
    **dict.fromkeys(("own", "champions"), partial(np.array, dtype=np.float64)),
}


def _typed(name: str, value: Any) -> Any:
    if name in _FLOATS:
        return NAN if value is None else float(value)
    return value if value is None or name not in _ARRAYS else _ARRAYS[name](value)


def read_shadow(
    directory: str | Path, challenger: str | None = None, *, on_damage: Callable[[Damage], None]
) -> dict[tuple[str, float], ShadowRecord]:
    """The opinions of a shadow log by decision, a later one in place of an earlier one.

    Args:
        challenger: only of this version; None: of all (then the last to speak counts).
        on_damage: told of every place that was skipped.

    Returns:
        Empty where there is no log.

    Raises:
        TraceError: a segment cannot be read.
    """
    found: dict[tuple[str, float], ShadowRecord] = {}
    for path in segments(Path(directory), STEM):
        try:
            for offset, item in read_frames(path):
                if isinstance(item, Damage):
                    on_damage(item)
                    continue
                try:
                    record = ShadowRecord.from_json(item)
                except ValueError as error:
                    on_damage(Damage(path, offset, len(item), f"is no shadow record ({error})"))
                    continue
                if challenger in (None, record.challenger):
                    found[record.key] = record
        except FileNotFoundError:
            continue  # made room for a newer one meanwhile
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror})", path=str(path)) from None
    return found
