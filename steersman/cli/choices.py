"""Reading lists, scenarios and traces from the command line, for `simulate` and `evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from steersman.cli.common import notes
from steersman.traces.errors import ConfigError

if TYPE_CHECKING:
    from steersman.env.scenario import Split
    from steersman.traces.scenario import Scenario

DEFAULT_SCENARIOS = "homogeneous,mixed,prefix,stale"
Scenarios = Annotated[
    str, typer.Option(help="Scenarios, separated by commas: bundled names, or YAML files.")
]
OneTrace = Annotated[str | None, typer.Option(help="Trace for all of them: a bundled name, or a file.")]

T = TypeVar("T")


def names(option: str, text: str) -> list[str]:
    """`a,b` as a list without blanks.

    Raises:
        ConfigError: nothing is named.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option} is empty; name at least one, separated by commas")
    return found


def numbers(option: str, text: str, convert: Callable[[str], T]) -> list[T]:
    """`0.6,0.8` as numbers.

    Raises:
        ConfigError: a part is not a number.
    """
    found = []
    for part in names(option, text):
        try:
            found.append(convert(part))
        except ValueError:
            raise ConfigError(
                f"{option}: '{part}' is not a number; separate numbers by commas"
            ) from None
    return found


def split_names(option: str, text: str) -> list[Split]:
    """`tune,evaluation` as splits.

    Raises:
        ConfigError: one is unknown.
    """
    from steersman.env.scenario import SPLITS

    found: list[Split] = []
    for part in names(option, text):
        if part not in SPLITS:
            raise ConfigError(f"{option}: '{part}' is not a split; known: {', '.join(SPLITS)}")
        found.append(SPLITS[SPLITS.index(part)])
    return found


def positive_loads(option: str, text: str) -> tuple[float, ...]:
    """Loads as shares of saturation.

    Raises:
        ConfigError: one is not a number above 0 and at most 5.
    """
    loads = tuple(numbers(option, text, float))
    for load in loads:
        if not 0.0 < load <= 5.0:
            raise ConfigError(f"{option}: {load:g} is not a share of saturation, for example 0.8")
    return loads


def measured(scenario: Scenario, trace: str | None, split: Split = "all") -> Scenario:
    """A scenario ready to be loaded: with the trace asked for, and its saturation known."""
    from steersman.env.saturation import with_traffic

    ready = with_traffic(scenario, trace, split)
    if ready is not scenario:
        notes.print(
            f"measured the saturation of '{ready.name}' on {ready.trace}: "
            f"{ready.saturation_rps:.2f} requests/s"
        )
    return ready
