"""Fit a hardware profile to requests that were measured: a router's outcome log, or a CSV file.

Every replica's requests are played on it alone, in the order they came, and the profile's numbers are
regressed along the schedule (`regression.py`). The last part of the time is held out of the fit, and the
error reported is that of its quantiles, before and after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import yaml
from numpy.typing import NDArray

from steersman.env.iterations import Iterations, cost_of, play_iterations, with_cost
from steersman.env.profiles import ProfileSettings, check_profile
from steersman.env.regression import Measured, fit_cost
from steersman.env.samples import Sample
from steersman.traces.errors import ConfigError
from steersman.traces.schema import HardwareProfile
from steersman.traces.trace import Trace

Floats = NDArray[np.float64]

LEAST_REQUESTS = 50
"""With known times, in the part that is fitted; a profile has six numbers."""
HELD_OUT = 0.3
"""Last share of the requests by time."""
QUANTILES = {"p50": 0.5, "p90": 0.9}


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A quantile of the held-out requests; signed errors are shares of what was measured."""

    figure: str
    """For example `ttft_p50`."""
    measured_s: float
    before: float
    """With the profile as it was."""
    after: float
    """With the fitted one."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile and how far it can be trusted."""

    profile: HardwareProfile
    fitted_requests: int
    held_out_requests: int
    replicas: int
    errors: tuple[ErrorLine, ...]


def calibrate(
    samples: Sequence[Sample], profile: HardwareProfile, *, held_out: float = HELD_OUT
) -> Calibration:
    """Fit the profile's times; its limits and memory stay.

    Args:
        samples: by arrival, all replicas of this one profile.
        profile: the first guess.
        held_out: last share of the requests, which the fit does not see.

    Raises:
        ConfigError: too few requests with known times, or none of them could run on the profile.
    """
    boundary = round(len(samples) * (1.0 - held_out))
    known = [math.isfinite(s.ttft_s) or math.isfinite(s.e2e_s) for s in samples]
    fitted, judged = sum(known[:boundary]), sum(known[boundary:])
    if fitted < LEAST_REQUESTS or judged < 1:
        raise ConfigError(
            f"too little to calibrate on: {fitted} requests with known times before the held-out "
            f"{held_out:.0%}, {LEAST_REQUESTS} are needed; record more traffic"
        )
    parts = _by_replica(samples)
    ttft_s = np.array([s.ttft_s for s in samples])
    e2e_s = np.array([s.e2e_s for s in samples])
    seen = np.arange(len(samples)) < boundary
    measured = Measured(np.where(seen, ttft_s, np.nan), np.where(seen, e2e_s, np.nan))
    before = _play(profile, parts, len(samples))
    if not np.isfinite(before.ttft_s[:boundary]).any():
        raise ConfigError(
            f"no request fits profile '{profile.name}': kv_capacity_tokens = "
            f"{profile.kv_capacity_tokens} or the model's context window is too small for them"
        )
    fit = fit_cost(
        lambda cost: _play(with_cost(profile, _possible(cost)), parts, len(samples)),
        measured,
        cost_of(profile),
    )
    found = with_cost(profile, _possible(fit.cost))
    after = _play(found, parts, len(samples))
    steps = np.array([max((s.request.output_tokens or 1) - 1, 1) for s in samples])
    errors = _errors(~seen, Measured(ttft_s, e2e_s), before, after, steps)
    return Calibration(found, fitted, judged, len(parts), errors)


def profile_yaml(calibration: Calibration, *, name: str, model: str, source: str) -> str:
    """The profile as a file of `configs/hardware/`; `model` is what its key of that name shall say.

    Raises:
        ConfigError: the fitted numbers make no possible profile.
    """
    profile = replace(calibration.profile, name=name, source=source)
    check_profile(profile, source=name)
    lines = [
        f"# {profile.model.name} on {profile.tensor_parallel} x {profile.gpu}, calibrated. "
        "Times in seconds; how they add up: docs/simulator.md.",
        f"# {calibration.fitted_requests} requests fitted, {calibration.held_out_requests} held out; "
        "error on those:",
        *(f"#   {e.figure}: {e.after:+.1%} (before: {e.before:+.1%})" for e in calibration.errors),
    ]
    for key, field in ProfileSettings.model_fields.items():
        value = model if key == "model" else getattr(profile, key)
        plain = float(f"{value:.6g}") if isinstance(value, float) else value
        text = yaml.safe_dump(str(plain) if isinstance(plain, str) else plain).removesuffix("...\n")
        lines.append(f"{key}: {text.strip()}  # {field.description}")
    return "\n".join(lines) + "\n"


def _possible(cost: Floats) -> Floats:
    """No cost that a profile may not have: reading weights and prefilling take some time."""
    least = np.zeros_like(cost)
    least[0], least[1], least[4] = 1e-5, 1e-6, 1e-9
    return np.maximum(cost, least)


def _by_replica(samples: Sequence[Sample]) -> list[tuple[NDArray[np.int64], Trace]]:
    """Rows of the samples, and their trace, for each replica."""
    rows: dict[str, list[int]] = {}
    for row, sample in enumerate(samples):
        rows.setdefault(sample.replica, []).append(row)
    parts = []
    for name, members in rows.items():
        requests = [
            replace(samples[row].request, request_id=str(row), parent_id=None, session_id=None)
            for row in members
        ]
        parts.append((np.array(members), Trace.from_requests(name, requests)))
    return parts


def _play(
    profile: HardwareProfile, parts: list[tuple[NDArray[np.int64], Trace]], count: int
) -> Iterations:
    """All replicas, in the order of the samples."""
    ttft_s, e2e_s = np.full(count, np.nan), np.full(count, np.nan)
    features: Floats | None = None
    for rows, trace in parts:
        played = play_iterations(profile, trace)
        if features is None:
            features = np.zeros((count, *played.features.shape[1:]))
        served = np.isfinite(played.ttft_s) & np.isfinite(played.e2e_s)
        ttft_s[rows] = np.where(served, played.ttft_s, np.nan)
        e2e_s[rows] = np.where(served, played.e2e_s, np.nan)
        features[rows] = played.features
    assert features is not None
    return Iterations(ttft_s, e2e_s, features)


def _errors(
    judged: NDArray[np.bool_], measured: Measured, before: Iterations, after: Iterations, steps: Floats
) -> tuple[ErrorLine, ...]:
    def figures(times: Measured | Iterations) -> dict[str, Floats]:
        tpot_s = np.where(steps > 1, (times.e2e_s - times.ttft_s) / steps, np.nan)
        return {"ttft": times.ttft_s, "tpot": tpot_s, "e2e": times.e2e_s}

    lines = []
    theirs, first, fitted = figures(measured), figures(before), figures(after)
    for name, values in theirs.items():
        rows = judged & np.isfinite(values) & np.isfinite(first[name]) & np.isfinite(fitted[name])
        if not rows.any():
            continue
        for label, share in QUANTILES.items():
            wanted = float(np.quantile(values[rows], share))
            errors = [float(np.quantile(t[name][rows], share)) / wanted - 1.0 for t in (first, fitted)]
            lines.append(ErrorLine(f"{name}_{label}", wanted, *errors))
    return tuple(lines)
