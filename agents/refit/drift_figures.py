"""What drift does to predictions and what learning makes of it, as benchmark rows and as a drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.refit.rehearsal import Learning, Played, Player, drift_course, recovery_requests
from steersman.agents.report.figures import curves
from steersman.predictors.drift import LEAST_MEASURED, TARGETS
from steersman.predictors.latency import LatencyPredictor
from steersman.predictors.length import LengthPredictor
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

Row = dict[str, str | float | None]

ROLLING = 200
"""Requests of which the drawing shows the median error."""
STEP = 25
LATENCIES = ("ttft", "tpot")


@dataclass(frozen=True)
class Change:
    """One of the two things that happen in a course."""

    name: str
    at: Callable[[Played], int]
    until: Callable[[Played], int]


CHANGES = (
    Change("slow", lambda played: played.slow_at, lambda played: played.flip_at),
    Change("flip", lambda played: played.flip_at, lambda played: len(played.actual)),
)


def play_drift(
    scenario: Scenario,
    trace: Trace,
    latency: LatencyPredictor,
    length: LengthPredictor,
    *,
    requests: int,
    min_outcomes: int,
    seeds: Sequence[int],
) -> dict[Learning, list[Played]]:
    """The same courses under every way of learning, one for each seed.

    Args:
        trace: traffic that the models were not fitted on.
        latency, length: the models at the start.
        requests: of each of the three phases, about.
        min_outcomes: as in `refit.min_outcomes`.
    """
    played: dict[Learning, list[Played]] = {learning: [] for learning in Learning}
    for seed in seeds:
        course = drift_course(scenario, trace, requests=requests, seed=seed)
        for learning in Learning:
            player = Player(course, learning, latency, length, min_outcomes=min_outcomes, seed=seed)
            played[learning].append(player.play())
    return played


def drift_rows(played: dict[Learning, list[Played]]) -> list[Row]:
    """Rows of a benchmark file.

    - `drift.recovery_requests`: after the hardware slowed, with corrector and refits, until both TTFT
      and TPOT have recovered;
    - `drift.<change>.<target>.<learning>.recovery_requests`: until the median error of the last 100
      requests is within 1.2 times that before anything happened; `.mdape`: of the second half of the
      phase after the change; `drift.before.<target>.<learning>.mdape`.

    Values are medians over seeds; the interval, where there are several, is the least and the greatest.
    A course in which the error never recovers counts as the length of the phase, and the note says so.
    """
    rows: list[Row] = []
    worst = [
        max(_recovery(each, target, CHANGES[0])[0] for target in LATENCIES)
        for each in played[Learning.REFITTED]
    ]
    lost = sum(
        any(_recovery(each, target, CHANGES[0])[1] for target in LATENCIES)
        for each in played[Learning.REFITTED]
    )
    rows.append(_row("drift.recovery_requests", worst, "requests", _lost(lost)))
    for learning, courses in played.items():
        for target in TARGETS:
            before = [_mdape(each, target, each.slow_at // 2, each.slow_at) for each in courses]
            rows.append(_row(f"drift.before.{target}.{learning}.mdape", before, "share"))
            for change in CHANGES:
                name = f"drift.{change.name}.{target}.{learning}"
                found = [_recovery(each, target, change) for each in courses]
                lost = sum(is_lost for _, is_lost in found)
                values = [value for value, _ in found]
                rows.append(_row(f"{name}.recovery_requests", values, "requests", _lost(lost)))
                late = [
                    _mdape(each, target, (change.at(each) + change.until(each)) // 2, change.until(each))
                    for each in courses
                ]
                rows.append(_row(f"{name}.mdape", late, "share"))
    return rows


def drift_drawing(played: dict[Learning, list[Played]], target: str) -> str:
    """SVG: median error of the last `ROLLING` requests over the first course, a line for each way."""
    first = played[Learning.REFITTED][0]
    series = {
        str(learning): _rolling(courses[0].errors(target, LEAST_MEASURED[target]))
        for learning, courses in played.items()
    }
    slow, flip = first.slow_at, first.flip_at
    label = f"request (hardware slows at {slow}, the mix turns over at {flip})"
    return curves(series, x_label=label, y_label=f"median error of {target}")


def _rolling(errors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    known = np.flatnonzero(np.isfinite(errors))
    ends = np.arange(ROLLING, len(known) + 1, STEP)
    medians = [float(np.median(errors[known[end - ROLLING : end]])) for end in ends]
    return known[ends - 1].astype(np.float64), np.array(medians)


def _recovery(played: Played, target: str, change: Change) -> tuple[float, bool]:
    """Requests until it recovered; the length of the phase, and True, if it never did."""
    errors = played.errors(target, LEAST_MEASURED[target])
    before = _mdape(played, target, played.slow_at // 2, played.slow_at)
    at, until = change.at(played), change.until(played)
    found = recovery_requests(errors, before, at, until)
    return (float(until - at), True) if found is None else (float(found), False)


def _mdape(played: Played, target: str, start: int, stop: int) -> float:
    return float(np.nanmedian(played.errors(target, LEAST_MEASURED[target])[start:stop]))


def _lost(courses: int) -> str:
    return f"never in {courses}" if courses else ""


def _row(name: str, values: Sequence[float], unit: str, note: str = "") -> Row:
    several = len(values) > 1
    return {
        "name": name,
        "value": float(np.median(values)),
        "lo": float(np.min(values)) if several else None,
        "hi": float(np.max(values)) if several else None,
        "unit": unit,
        "note": "; ".join(filter(None, (f"{len(values)} seeds", note))),
    }
