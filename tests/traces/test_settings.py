"""Mistakes in configuration files read alike: one line, and the most useful one."""

from __future__ import annotations

from typing import Self

import pytest
from pydantic import model_validator

from steersman.traces.errors import ConfigError
from steersman.traces.settings import Settings, parse_settings


class _Pair(Settings):
    left: int
    right: int = 0

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.left > self.right:
            raise ValueError("left must not be above right")
        return self


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"lfet": 1}, "unknown key 'lfet'; did you mean 'left'? (and 1 more)"),
        ({"right": 1}, "missing key 'left'; add it"),
        ({"left": 1, "right": 0}, "left must not be above right"),
        ({"left": float("nan")}, "'left' = nan: Input should be a finite number"),
    ],
    ids=["a misspelt key before the missing one", "missing", "keys together", "value"],
)
def test_the_first_mistake_in_one_line(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_settings(data, _Pair, source="file.yaml")
    assert str(told.value) == f"file.yaml: {message}"
