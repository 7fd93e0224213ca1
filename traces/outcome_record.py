"""One logged request: what came in, what was known, what was decided, what happened (SPEC I3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.traces.schema import (
    Decision,
    Outcome,
    Priority,
    QuestionType,
    Request,
    Status,
    ToolChoice,
)

NAN = math.nan


def _no_floats() -> NDArray[np.float64]:
    return np.empty(0)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, dtype=np.bool_)


@dataclass(slots=True, eq=False)  # frozen, its seventy fields would take three times as long to set
class OutcomeRecord:
    """Enough to replay, retrain and audit one decision; no prompt text unless that was asked for.

    n is the number of replicas in the snapshot. Unknown numbers are NaN, unknown strings empty. The
    arrays belong to the record: pass copies of whatever changes later. Nobody changes a record either.
    """

    # What came in: the fields of `Request`.
    request_id: str
    arrival_unix_s: float
    """Wall clock, seconds since 1970 UTC."""
    input_tokens: int
    max_tokens: int | None = None
    model: str = ""
    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    stream: bool = True
    tools: int = 0
    tool_choice: ToolChoice = ToolChoice.AUTO
    has_code: bool = False
    question_type: QuestionType = QuestionType.UNKNOWN
    question_bytes: int = 0
    asked_tokens: int = 0
    wording: float = 0.0
    turns: int = 1
    lora_adapter: str | None = None
    session_id: str | None = None
    parent_id: str | None = None
    block_hashes: tuple[int, ...] = ()
    block_tokens: int = 0
    hour_of_day: float | None = None
    # What was known.
    decided_at_s: float = NAN
    """The router's monotonic clock at the decision, on which the state's times are."""
    queued_s: float = 0.0
    """From arrival to that decision, earlier attempts included: predictions of TTFT begin then."""
    replica_ids: tuple[str, ...] = ()
    """(n,)"""
    state: NDArray[np.float64] = field(default_factory=_no_floats)
    """(n, STATE_WIDTH): the rows of `predictors/ledger.py`."""
    match_tokens: NDArray[np.float64] = field(default_factory=_no_floats)
    """(n,): prompt tokens believed to be in each replica's prefix cache."""
    mask: NDArray[np.bool_] = field(default_factory=_no_flags)
    """(n,): which replicas could be chosen."""
    request_features: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """(len(REQUEST_FEATURES),), as the policy saw them."""
    # What was decided.
    choice: int = -1
    """Index into `replica_ids`; -1: none."""
    replica_id: str = ""
    """The chosen replica's id."""
    policy: str = ""
    policy_version: str = ""
    propensity: float = NAN
    fallback_reason: str = ""
    scores: NDArray[np.float32] | None = None
    """(n,), higher is better; None where the policy does not score."""
    # What was predicted for the choice.
    output_p50: float = NAN
    output_p90: float = NAN
    ttft_p50_s: float = NAN
    ttft_p90_s: float = NAN
    tpot_p50_s: float = NAN
    tpot_p90_s: float = NAN
    estimated_ttft_s: float = NAN
    """Analytic estimate, without bias correction."""
    estimated_tpot_s: float = NAN
    ttft_slo_s: float = NAN
    tpot_slo_s: float = NAN
    # What happened: the fields of `Outcome`.
    status: Status = Status.OK
    served_by: str = ""
    """The replica that answered last: another than `replica_id` after a retry."""
    ttft_s: float = NAN
    tpot_s: float = NAN
    e2e_s: float = NAN
    output_tokens: int | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    retries: int = 0
    called_tool: bool | None = None
    error: str = ""
    """Machine-readable reason of a failure or refusal."""
    # Added since: only ever at the end, and with a default, so that older logs stay readable.
    arm: str = ""
    """Of a canary: the arm that served it, `champion` or `challenger`; empty without one."""
    bundle_version: str = ""
    """Of the trained models that served it; empty without any."""
    explored: bool = False
    """Chance made the choice, to learn from: see `Decision.explored`."""
    affinity: str = ""
    """What came of the request's group: `stayed`, `new`, `moved`, `pinned`, `holder_gone`; empty: it has
    none, or one that is too large to have a home."""
    held_s: float = 0.0
    """From arrival until it was its turn, if it was held back because every replica was full; else 0."""
    asked_model: str = ""
    """The model that was asked for, where `model` answered in its place; else empty."""
    superseded: bool = False
    """Of an attempt that was followed by another, or overtaken by it: another record of the same request
    tells how that ended. Readers pass these over unless they are asked for (`outcome_reading.py`)."""
    prompt_text: str | None = None
    """What the client sent, if text is to be logged (`outcome_log.prompt_text`), cut to its bound.
    Nothing reads it but who asks for this very field."""

    @staticmethod
    def of(
        request: Request, decision: Decision, outcome: Outcome, *, arrival_unix_s: float, **known: Any
    ) -> OutcomeRecord:
        """Put the parts together; `known` takes the remaining fields by name."""
        values = values_of(request, decision, outcome, arrival_unix_s=arrival_unix_s)
        return OutcomeRecord(**(values | known))

    def request(self, arrival_s: float) -> Request:
        """The request again, as part of a trace; its parent and think time are the reader's business."""
        shared = {name: getattr(self, name) for name in _REQUEST_FIELDS if name != "arrival_s"}
        ended: dict[str, Any] = {
            "output_tokens": self.output_tokens,
            "called_tool": self.called_tool,
        }
        return Request(arrival_s=arrival_s, **ended, **shared)

    def to_json(self) -> bytes:
        """One JSON object without line breaks. NaN and infinities are the strings "nan", "inf", "-inf".

        What has its default is left out: half of a record, and of the time that it takes to write.

        Raises:
            TypeError: a value that is not JSON (a lone surrogate in a name, for example).
        """
        return encoded(dict(zip(_NAMES, _all_of(self), strict=True)))

    @staticmethod
    def from_json(data: bytes) -> OutcomeRecord:
        """The inverse of `to_json`. Fields added by a later version are ignored.

        Raises:
            ValueError: not JSON, not an object, a required field missing, or a value of the wrong kind.
        """
        values = orjson.loads(data)
        if not isinstance(values, dict):
            raise ValueError("not an object")
        try:
            return OutcomeRecord(
                **{name: typed(name, values[name]) for name in _NAMES if name in values}
            )
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(str(error)) from None


_NAMES = tuple(f.name for f in fields(OutcomeRecord))
_REQUEST_FIELDS = tuple(
    f.name
    for f in fields(Request)
    if f.name in _NAMES and f.name not in ("output_tokens", "called_tool")
)
_OUTCOME_FIELDS = (
    "status",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "retries",
    "called_tool",
)


_of_request, _of_outcome = attrgetter(*_REQUEST_FIELDS), attrgetter(*_OUTCOME_FIELDS)
_all_of = attrgetter(*_NAMES)
"""All at once: one by one they take four times as long, and the router writes records."""
_ARRAYS = ("state", "match_tokens", "mask", "request_features", "scores")
_FLOATS = (float, np.floating)
_DEFAULTS = {f.name: f.default for f in fields(OutcomeRecord)}


def values_of(
    request: Request, decision: Decision, outcome: Outcome, *, arrival_unix_s: float
) -> dict[str, Any]:
    """What a record has of these three, by the names of its fields."""
    return {
        **dict(zip(_REQUEST_FIELDS, _of_request(request), strict=True)),
        **dict(zip(_OUTCOME_FIELDS, _of_outcome(outcome), strict=True)),
        "arrival_unix_s": arrival_unix_s,
        "choice": decision.choice,
        "policy": decision.policy,
        "policy_version": decision.version,
        "propensity": decision.propensity,
        "fallback_reason": decision.fallback_reason,
        "scores": decision.scores,
        "explored": decision.explored,
    }


def encoded(values: dict[str, Any]) -> bytes:
    """`OutcomeRecord.to_json` of the record with these values of its fields; what is not among them has
    its default. Without the record, which takes as long as the rest: the router writes thousands.

    Raises:
        KeyError: a record has no field of that name.
        TypeError: as `OutcomeRecord.to_json`.
    """
    defaults = _DEFAULTS
    told = {name: value for name, value in values.items() if value is not defaults[name]}
    for name in _ARRAYS:
        array = told.get(name)
        if array is not None:
            if array.size or name == "scores":
                told[name] = _array(array)
            else:
                del told[name]
    odd = [
        name for name, value in told.items() if isinstance(value, _FLOATS) and not math.isfinite(value)
    ]
    for name in odd:
        if defaults[name] is NAN and math.isnan(told[name]):
            del told[name]
        else:
            told[name] = str(float(told[name]))
    return orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)


def _array(array: NDArray[Any]) -> Any:
    """What orjson writes without losing anything."""
    # The sum of squares is finite if all are, unless it overflows; in a third of the time.
    is_whole = array.dtype.kind != "f" or math.isfinite(np.vdot(array, array))
    is_whole = is_whole or bool(np.isfinite(array).all())
    return np.ascontiguousarray(array) if is_whole else _listed(array.tolist())


def _listed(value: Any) -> Any:
    if isinstance(value, list):
        return [_listed(item) for item in value]
    return value if math.isfinite(value) else str(value)


def typed(name: str, value: Any) -> Any:
    """What a field of this name holds, from what JSON or a table made of it."""
    return value if value is None or name not in _READERS else _READERS[name](value)


_READERS: dict[str, Callable[[Any], Any]] = {
    **{f.name: float for f in fields(OutcomeRecord) if f.type in ("float", "float | None")},
    **dict.fromkeys(("state", "match_tokens"), partial(np.array, dtype=np.float64)),
    **dict.fromkeys(("request_features", "scores"), partial(np.array, dtype=np.float32)),
    "mask": partial(np.array, dtype=np.bool_),
    "replica_ids": tuple,
    "block_hashes": tuple,
    "priority": Priority,
    "question_type": QuestionType,
    "tool_choice": ToolChoice,
    "status": Status,
}
"""How the fields that JSON does not hold as they are become what they were."""
