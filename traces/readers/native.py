"""Our own table of requests, as `steersman trace convert` writes it: a column per field of `Request`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from typing import TypeVar

from steersman.traces.readers.fields import MAX_TOKENS, Fields
from steersman.traces.readers.order import Placed
from steersman.traces.readers.source import Source
from steersman.traces.schema import Priority, QuestionType, Request, ToolChoice

COLUMNS = ("arrival_s", "input_tokens")
"""The others may be left out, or empty; they then have `Request`'s defaults."""
ALL_COLUMNS = tuple(field.name for field in dataclass_fields(Request))

D = TypeVar("D", int, None)
F = TypeVar("F", bool, None)

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def read_native(source: Source, model: str) -> Iterator[Placed]:
    """CSV (block hashes separated by spaces), JSON lines or parquet.

    Raises:
        TraceError: a value out of range, or a column that `Request` does not know.
    """
    fields = Fields(str(source.path))
    unknown = sorted(set(source.columns) - set(ALL_COLUMNS))
    if unknown:
        message = f"has unknown columns {', '.join(unknown)}; known are {', '.join(ALL_COLUMNS)}"
        raise fields.at(1, {}).error(message)
    for place, row in source.rows():
        yield place, _request(fields.at(place, row), model)


def _request(at: Fields, model: str) -> Request:
    hashes = tuple(at.hashes("block_hashes"))
    return Request(
        request_id=_text(at, "request_id") or f"r{at.place}",
        arrival_s=at.seconds("arrival_s"),
        input_tokens=at.tokens("input_tokens"),
        output_tokens=_count(at, "output_tokens", None),
        max_tokens=_count(at, "max_tokens", None),
        model=_text(at, "model") or model,
        tenant=_text(at, "tenant") or "",
        priority=Priority(at.integer("priority", 0, 3)) if at.has("priority") else Priority.INTERACTIVE,
        stream=_flag(at, "stream", True),
        tools=_count(at, "tools", 0),
        tool_choice=(
            ToolChoice(at.integer("tool_choice", 0, 2)) if at.has("tool_choice") else ToolChoice.AUTO
        ),
        has_code=_flag(at, "has_code", False),
        question_type=_question_type(at),
        question_bytes=_count(at, "question_bytes", 0),
        asked_tokens=_count(at, "asked_tokens", 0),
        wording=at.number("wording") if at.has("wording") else 0.0,
        turns=_count(at, "turns", 1),
        lora_adapter=_text(at, "lora_adapter"),
        session_id=_text(at, "session_id"),
        parent_id=_text(at, "parent_id"),
        think_time_s=at.seconds("think_time_s") if at.has("think_time_s") else 0.0,
        block_hashes=hashes,
        block_tokens=at.integer("block_tokens", 1, MAX_TOKENS) if hashes else 0,
        hour_of_day=_hour(at),
        called_tool=_flag(at, "called_tool", None),
    )


def _text(at: Fields, column: str) -> str | None:
    return at.text(column) if at.has(column) else None


def _count(at: Fields, column: str, default: D) -> int | D:
    return at.integer(column, 0, MAX_TOKENS) if at.has(column) else default


def _flag(at: Fields, column: str, default: F) -> bool | F:
    if not at.has(column):
        return default
    flag = _FLAGS.get(str(at.raw(column)).lower())
    if flag is None:
        raise at.error(f"'{column}' = {at.raw(column)!r} is neither true nor false")
    return flag


def _question_type(at: Fields) -> QuestionType:
    if not at.has("question_type"):
        return QuestionType.UNKNOWN
    try:
        return QuestionType(at.text("question_type"))
    except ValueError:
        known = ", ".join(QuestionType)
        raise at.error(f"'question_type' = {at.raw('question_type')!r} is none of {known}") from None


def _hour(at: Fields) -> float | None:
    if not at.has("hour_of_day"):
        return None
    hour = at.number("hour_of_day")
    if not 0.0 <= hour < 24.0:
        raise at.error(f"'hour_of_day' = {hour:g} is outside 0 to 24")
    return hour
