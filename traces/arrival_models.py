"""Arrival processes: when requests come, given how many or for how long.

All but `Replay` are renewal processes in *operational time*, in which the rate is one: gaps are drawn
from a Gamma distribution of the wanted variability, and the inverse of the cumulative rate
Λ(t) = ∫₀ᵗ λ(s) ds turns the k-th point into the time at which Λ reaches it (time rescaling; for
exponential gaps this is exactly the inhomogeneous Poisson process of rate λ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steersman.traces.errors import ConfigError

Times = NDArray[np.float64]


class ArrivalModel(Protocol):
    """Draws arrival times, sorted, in seconds from 0.

    Exactly one of `count` (that many arrivals) and `duration_s` (all arrivals before it) is given. The
    same generator state gives the same times.
    """

    def times(
        self, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
    ) -> Times:
        """Draw arrival times, shape (count,) or whatever falls into the duration."""
        ...


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded arrivals, from the first on; where they do not suffice they are played again."""

    recorded_s: tuple[float, ...]

    def __post_init__(self) -> None:
        span = self.recorded_s[-1] - self.recorded_s[0] if self.recorded_s else 0.0
        if not span > 0 or any(later < earlier for earlier, later in pairwise(self.recorded_s)):
            raise ConfigError("replay needs at least two recorded arrivals, sorted, at different times")

    def times(
        self,
        rng: np.random.Generator,  # noqa: ARG002 (part of the contract)
        *,
        count: int | None = None,
        duration_s: float | None = None,
    ) -> Times:
        """Uses no randomness."""
        once = np.array(self.recorded_s) - self.recorded_s[0]
        period = (
            once[-1] * len(once) / (len(once) - 1)
        )  # one mean gap between the end and the next start
        _check_span(count, duration_s)
        needed = count / len(once) if count is not None else (duration_s or 0.0) / period
        times: Times = (once + period * np.arange(max(math.ceil(needed), 1))[:, None]).ravel()
        return times[:count] if count is not None else times[times < (duration_s or 0.0)]


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gaps of the given coefficient of variation: 1 is Poisson, more is burstier."""

    rate_rps: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(rate_rps=self.rate_rps, cv=self.cv)

    def times(
        self, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
    ) -> Times:
        """Gaps are Gamma(1/cv², cv²/rate)."""
        total = None if duration_s is None else duration_s * self.rate_rps
        return _operational(rng, self.cv, count, total) / self.rate_rps


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at a constant rate."""

    rate_rps: float

    def times(
        self, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
    ) -> Times:
        """Exponential gaps."""
        return Gamma(self.rate_rps).times(rng, count=count, duration_s=duration_s)


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts: periods of a high rate between periods of a low one, exponentially long.

    The low rate follows from the mean rate, and must not be negative:
    low = rate * (1 - (burst_factor - 1) * on_s / off_s).
    """

    rate_rps: float
    """Mean over both kinds of period."""
    burst_factor: float = 3.0
    """Rate in a burst over the mean rate."""
    on_s: float = 10.0
    """Mean length of a burst."""
    off_s: float = 50.0
    """Mean time between bursts."""

    def __post_init__(self) -> None:
        _check_positive(rate_rps=self.rate_rps, on_s=self.on_s, off_s=self.off_s)
        most = 1.0 + self.off_s / self.on_s
        if not 1.0 <= self.burst_factor <= most:
            raise ConfigError(
                f"burst_factor = {self.burst_factor:g} must be between 1 and 1 + off_s/on_s = {most:g}"
            )

    def times(
        self, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
    ) -> Times:
        """A Poisson process whose rate jumps; it starts in a random one of the two phases."""
        if count is None:
            edges, mass = self._cumulative(rng, lambda end_s, _: end_s >= (duration_s or 0.0))
            points = _operational(rng, 1.0, None, float(np.interp(duration_s or 0.0, edges, mass)))
        else:
            points = _operational(rng, 1.0, count, None)
            last = float(points[-1]) if count else 0.0
            edges, mass = self._cumulative(rng, lambda _, expected: expected >= last)
        return np.interp(points, mass, edges)

    def _cumulative(
        self, rng: np.random.Generator, enough: Callable[[float, float], bool]
    ) -> tuple[list[float], list[float]]:
        """Ends of the periods and Λ there, until `enough(time, Λ)`."""
        high = self.rate_rps * self.burst_factor
        low = self.rate_rps * (1.0 - (self.burst_factor - 1.0) * self.on_s / self.off_s)
        on = rng.random() < self.on_s / (self.on_s + self.off_s)
        edges, mass = [0.0], [0.0]
        while not enough(edges[-1], mass[-1]):
            length = rng.exponential(self.on_s if on else self.off_s)
            edges.append(edges[-1] + length)
            mass.append(mass[-1] + length * (high if on else low))
            on = not on
        return edges, mass


@dataclass(frozen=True, slots=True)
class Daily:
    """A daily cycle: rate(t) = rate_rps * (1 + amplitude * cos(2π (t / period_s - peak_hour / 24)))."""

    rate_rps: float
    """Mean over a day."""
    amplitude: float = 0.5
    """0: none; 1: the rate falls to zero at night."""
    peak_hour: float = 14.0
    """Hour of the highest rate; time 0 is midnight."""
    period_s: float = 86_400.0
    cv: float = 1.0
    """Variability of the gaps in operational time."""

    def __post_init__(self) -> None:
        _check_positive(rate_rps=self.rate_rps, period_s=self.period_s, cv=self.cv)
        if not 0.0 <= self.amplitude <= 1.0:
            raise ConfigError(f"amplitude = {self.amplitude:g} must be between 0 and 1")

    def expected(self, time_s: Times) -> Times:
        """Λ(t): expected arrivals before t."""
        omega = 2.0 * math.pi / self.period_s
        phase = 2.0 * math.pi * self.peak_hour / 24.0
        swing = np.sin(omega * time_s - phase) + math.sin(phase)
        return self.rate_rps * (time_s + self.amplitude / omega * swing)

    def times(
        self, rng: np.random.Generator, *, count: int | None = None, duration_s: float | None = None
    ) -> Times:
        """Λ is inverted by bisection, to a microsecond."""
        total = None if duration_s is None else float(self.expected(np.array(duration_s)))
        points = _operational(rng, self.cv, count, total)
        # |Λ(t) - rate * t| is at most rate * amplitude * period / π.
        slack = self.amplitude * self.period_s / math.pi + 1e-6
        low, high = points / self.rate_rps - slack, points / self.rate_rps + slack
        while (high - low).max(initial=0.0) > 1e-7:
            middle = 0.5 * (low + high)
            is_late = self.expected(middle) >= points
            low, high = np.where(is_late, low, middle), np.where(is_late, middle, high)
        times = np.maximum.accumulate(np.maximum(high, 0.0))
        return times if duration_s is None else times[times < duration_s]


def _operational(rng: np.random.Generator, cv: float, count: int | None, total: float | None) -> Times:
    """Points of a unit-rate renewal process: `count` of them, or all before `total`."""
    _check_span(count, total)
    shape, scale = 1.0 / cv**2, cv**2
    if count is not None:
        return np.cumsum(rng.gamma(shape, scale, count))
    points = np.empty(0)
    end, total = 0.0, total or 0.0
    while end < total:
        gaps = rng.gamma(shape, scale, int((total - end) * 1.1) + 16)
        points = np.concatenate((points, end + np.cumsum(gaps)))
        end = float(points[-1])
    return points[points < total]


def _check_span(count: int | None, length: float | None) -> None:
    if (count is None) == (length is None):
        raise TypeError("give either count or duration_s")


def _check_positive(**values: float) -> None:
    for key, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{key} = {value:g} must be a positive number")
