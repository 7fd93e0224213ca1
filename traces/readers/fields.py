"""Values out of a row, checked, with errors that name the row, the column and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steersman.traces.errors import TraceError

MAX_TOKENS = 10_000_000
"""More tokens than any context window: a unit or a column went wrong."""


class Fields:
    """Typed access to the rows of one file. One object per file; `at` moves it to the next row."""

    __slots__ = ("_path", "place", "row")

    def __init__(self, path: str) -> None:
        self._path = path
        self.row: Mapping[str, Any] = {}
        self.place = 0

    def at(self, place: int, row: Mapping[str, Any]) -> Fields:
        """Move to a row."""
        self.place = place
        self.row = row
        return self

    def error(self, message: str) -> TraceError:
        """An error at the current row."""
        return TraceError(message, path=self._path, row=self.place)

    def raw(self, column: str) -> Any:
        """A value that must be there."""
        try:
            value = self.row[column]
        except KeyError:
            raise self.error(f"lacks '{column}'; it has {', '.join(self.row) or 'nothing'}") from None
        if value is None or value == "":
            raise self.error(f"'{column}' is empty; give a value in every row")
        return value

    def has(self, column: str) -> bool:
        """True where there is a value that is not empty."""
        return self.row.get(column) not in (None, "")

    def number(self, column: str) -> float:
        """A finite number."""
        value = self.raw(column)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self.error(f"'{column}' = {value!r} is not a number") from None
        if not math.isfinite(number) or isinstance(value, bool):
            raise self.error(f"'{column}' = {value!r} is not a finite number")
        return number

    def seconds(self, column: str) -> float:
        """A finite time, not negative."""
        value = self.number(column)
        if value < 0:
            raise self.error(f"'{column}' = {value:g} is negative; times count from the start")
        return value

    def integer(self, column: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number in [low, high]."""
        value = self.raw(column)
        if type(value) is not int:
            try:
                number = int(value) if isinstance(value, str) else self.number(column)
            except ValueError:
                number = self.number(column)
            if number != int(number):
                raise self.error(f"'{column}' = {value!r} is not a whole number")
            value = int(number)
        if not low <= value <= high:
            raise self.error(f"'{column}' = {value} is outside {low} to {high}")
        return int(value)

    def tokens(self, column: str) -> int:
        """A token count; zero counts as one, since no engine serves fewer."""
        return max(self.integer(column, 0, MAX_TOKENS), 1)

    def text(self, column: str) -> str:
        """A string; numbers are written out."""
        value = self.raw(column)
        if not isinstance(value, str | int | float):
            raise self.error(f"'{column}' = {value!r} is not text")
        return str(value)

    def hashes(self, column: str) -> list[int]:
        """Non-negative 63-bit integers, as a list or written with spaces between; missing: none."""
        values = self.row.get(column)
        if isinstance(values, str):
            words = values.split()
            if not all(word.isascii() and word.isdigit() for word in words):
                raise self.error(f"'{column}' = {values[:40]!r} is not a list of block hashes")
            values = [int(word) for word in words]
        if values is None:
            return []
        if not isinstance(values, list):
            raise self.error(f"'{column}' = {str(values)[:40]!r} is not a list of block hashes")
        for value in values:
            if type(value) is not int or not 0 <= value < 2**63:
                raise self.error(
                    f"'{column}' holds {value!r}; block hashes are integers from 0 to 2**63 - 1"
                )
        return values
