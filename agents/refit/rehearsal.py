"""A rehearsal of drift: simulated traffic on hardware that slows down and a mix that turns over.

The same course is played under three ways of learning: `frozen` (models and estimates as they were at
the start), `corrected` (the bias corrector of every replica, which works at once) and `refitted` (also
refits when predictions have drifted, as a router does it: same detectors, same window, same judge).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from steersman.agents.refit.attempt import refit_latency, refit_length
from steersman.agents.refit.outcomes import Taught, logged_outcomes
from steersman.env.bulk import output_quantiles
from steersman.env.cluster import Cluster
from steersman.env.requests import request_table
from steersman.env.saturation import SaturationEstimate
from steersman.predictors import ledger as L
from steersman.predictors import pace as P
from steersman.predictors.alarm import Alarm
from steersman.predictors.drift import TARGETS, DriftDetector
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.latency import LatencyModel, LatencyPredictor
from steersman.predictors.length import LengthModel, LengthPredictor
from steersman.predictors.pace import Pace
from steersman.traces.arrivals import block_bootstrap, scale_tokens, superpose
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]

LOAD = 0.5
"""Arrival rate over saturation before anything happens; the slower hardware is at `LOAD * SLOWDOWN`."""
SLOWDOWN = 1.4
INPUT_FACTOR, OUTPUT_FACTOR = 2.5, 0.35
"""How the mix turns over: from chat to requests like those of code completion."""
CHECK_REQUESTS = 100
"""Outcomes are looked at after so many requests."""

_COST = REPLICA_INDEX["marginal_cost"]
_RAW = [REPLICA_INDEX["raw_ttft_s"], REPLICA_INDEX["raw_tpot_s"]]
_BIASES = [L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT]


class Learning(StrEnum):
    """What learns while serving."""

    FROZEN = "frozen"
    CORRECTED = "corrected"
    REFITTED = "refitted"


@dataclass(frozen=True)
class DriftCourse:
    """What happens, and when."""

    scenario: Scenario
    trace: Trace
    slow_at_s: float
    """From here every replica takes `SLOWDOWN` times as long."""
    flip_at_s: float
    """From here prompts are longer and answers shorter."""


@dataclass
class Played:
    """n requests in order of arrival."""

    predicted: Float64
    """(n, 6): p50 and p90 of TTFT and TPOT (s) and of output tokens."""
    actual: Float64
    """(n, 3): TTFT, TPOT (s) and output tokens; NaN for what did not end well."""
    slow_at: int
    """First request after the hardware slowed."""
    flip_at: int
    refits: list[tuple[int, str]] = field(default_factory=list)
    """Number of requests at that time, and what was replaced by it, or `kept`."""

    def errors(self, target: str, least: float) -> Float64:
        """(n,) |p50 - actual| / actual; NaN where there is none to count."""
        i = TARGETS.index(target)
        actual = self.actual[:, i]
        counted = np.isfinite(actual) & (actual >= least)
        safe = np.where(counted, actual, 1.0)
        return np.where(counted, np.abs(self.predicted[:, 2 * i] - safe) / safe, np.nan)


def drift_course(scenario: Scenario, source: Trace, *, requests: int, seed: int) -> DriftCourse:
    """Three phases of about `requests` each: as it was, slower hardware, another mix too.

    The third has the same load as the second.
    """
    turned = scale_tokens(source, input_factor=INPUT_FACTOR, output_factor=OUTPUT_FACTOR)
    rate_rps = LOAD * SaturationEstimate(source, scenario).of(scenario.replicas)
    # The scenario's own correction was measured on its own traffic; of the other mix only the ratio.
    ratio = SaturationEstimate(turned).of(scenario.replicas) / SaturationEstimate(source).of(
        scenario.replicas
    )
    phase_s = requests / rate_rps
    first = block_bootstrap(source, rate_rps=rate_rps, duration_s=2 * phase_s, seed=seed)
    second = block_bootstrap(
        turned, rate_rps=rate_rps * ratio, duration_s=phase_s / ratio, seed=seed + 1
    )
    later = second.replace(arrival_s=second.arrival_s + 2 * phase_s)
    trace = superpose([first, later], name="drift")
    return DriftCourse(scenario, trace, phase_s, 2 * phase_s)


class Player:
    """Plays a course under one way of learning.

    Args:
        latency, length: the models at the start.
        min_outcomes: to wait for after drift was seen, as in `refit.min_outcomes`.
        window: most outcomes to learn from.
    """

    def __init__(
        self,
        course: DriftCourse,
        learning: Learning,
        latency: LatencyPredictor,
        length: LengthPredictor,
        *,
        min_outcomes: int = 1_000,
        window: int = 20_000,
        seed: int = 0,
    ) -> None:
        self._course, self._learning = course, learning
        self._latency, self._length = latency, length
        self._window, self._seed = window, seed
        scenario, trace = course.scenario, course.trace
        self._cluster = Cluster(
            scenario.replicas,
            trace,
            output_quantiles=output_quantiles(trace, length),
            staleness=scenario.staleness,
            prefix_cache=scenario.prefix_cache,
            seed=seed,
        )
        self._profiles = np.stack([L.new_row(spec.profile) for spec in scenario.replicas])
        self._predicted = np.full((len(trace), 2 * len(TARGETS)), np.nan)
        self._lessons: dict[int, Taught] = {}
        """By row of the trace, without the outcome."""
        self._judged = np.zeros(len(trace), dtype=np.bool_)
        self._detectors: dict[tuple[str, str], DriftDetector] = {}
        self._paces = [Pace() for _ in scenario.replicas]
        self._raw = np.full((len(trace), len(_RAW)), np.nan)
        self._alarm = Alarm(min_outcomes)
        self._ended: list[Taught] = []
        self._refits: list[tuple[int, str]] = []

    @property
    def ended(self) -> list[Taught]:
        """What a log would hold, in the order of ending. Only `refitted` keeps one."""
        return self._ended

    def play(self) -> Played:
        """From the first request to the last outcome."""
        cluster, course = self._cluster, self._course
        decided, slow_at = 0, -1
        while (row := cluster.next_request()) is not None:
            if slow_at < 0 and cluster.now_s >= course.slow_at_s:
                slow_at = decided
                for replica, spec in enumerate(course.scenario.replicas):
                    cluster.set_slowdown(replica, SLOWDOWN * spec.slowdown)
            self._decide(row)
            decided += 1
            if decided % CHECK_REQUESTS == 0:
                self._look_back(decided)
        cluster.finish()
        outcomes = cluster.outcomes()
        actual = np.empty((len(outcomes), len(TARGETS)))
        actual[:] = np.stack((outcomes.ttft_s, outcomes.tpot_s, outcomes.output_tokens), axis=1)
        actual[~outcomes.ok] = np.nan
        flip_at = int(np.searchsorted(course.trace.arrival_s, course.flip_at_s))
        return Played(self._predicted, actual, slow_at, flip_at, self._refits)

    def _decide(self, row: int) -> None:
        cluster = self._cluster
        if self._learning is Learning.FROZEN:
            cluster.state[:, _BIASES] = 0.0
        seen = cluster.observe()
        choice = int(np.argmin(np.where(seen.mask, seen.replicas[:, _COST], np.inf)))
        latency = self._latency.predict(seen.replicas[choice][None], seen.request)[0]
        self._raw[row] = seen.replicas[choice, _RAW]
        table = cluster.table.features[row]
        self._predicted[row, :4] = latency
        self._predicted[row, 4:] = table[-4:-2]
        self._lessons[row] = Taught(
            state=cluster.state[choice].copy(),
            request=seen.request.copy(),
            match_tokens=float(cluster.match_tokens()[choice]),
            decided_at_s=cluster.now_s,
            ttft_s=math.nan,
            tpot_s=math.nan,
            output_tokens=0.0,
            ended_s=math.nan,
        )
        cluster.dispatch(choice)

    def _look_back(self, decided: int) -> None:
        """Learn from what has ended since the last look."""
        if self._learning is not Learning.REFITTED:
            return
        outcomes, now_s = self._cluster.outcomes(), self._cluster.now_s
        ended_s = outcomes.arrival_s + outcomes.e2e_s
        rows = np.flatnonzero(outcomes.ok & (ended_s <= now_s) & ~self._judged)
        self._judged[rows] = True
        for row in rows[np.argsort(ended_s[rows])].tolist():
            actual = (outcomes.ttft_s[row], outcomes.tpot_s[row], float(outcomes.output_tokens[row]))
            lesson = self._lessons.pop(row)._replace(
                ttft_s=actual[0], tpot_s=actual[1], output_tokens=actual[2], ended_s=float(ended_s[row])
            )
            self._ended.append(lesson)
            self._watch(int(outcomes.replica[row]), row, actual)
        drifted = sum(detector.drifted for detector in self._detectors.values())
        drifted += sum(len(pace.drifted) for pace in self._paces)
        self._alarm.look(drifted, len(self._ended), now_s)
        if self._alarm.is_due(len(self._ended)):
            self._refit(decided, self._alarm.since_s)

    def _watch(self, replica: int, row: int, actual: tuple[float, ...]) -> None:
        spec = self._course.scenario.replicas[replica]
        for target, actual_s, raw_s in zip(P.TARGETS, actual, self._raw[row].tolist(), strict=False):
            self._paces[replica].observe(target, actual_s, raw_s)
        for i, target in enumerate(TARGETS):
            if actual[i] > 0.0:
                hardware = "any" if target == "output" else spec.profile.name
                detector = self._detectors.setdefault((hardware, target), DriftDetector())
                detector.observe(math.log(actual[i] / self._predicted[row, 2 * i]))

    def _refit(self, decided: int, since_s: float | None) -> None:
        outcomes = logged_outcomes(self._ended)
        latency, verdict = refit_latency(
            outcomes, self._latency, window=self._window, since_s=since_s, seed=self._seed
        )
        replaced = []
        if latency is not None and verdict.better:
            self._latency = LatencyModel.from_bytes(latency.onnx)
            replaced.append("latency")
        length, verdict = refit_length(
            outcomes, self._length, window=self._window, since_s=since_s, seed=self._seed
        )
        if length is not None and verdict.better:
            self._length = LengthModel.from_bytes(length.onnx)
            quantiles = output_quantiles(self._course.trace, self._length)
            self._cluster.table = request_table(
                self._course.trace, self._profiles, output_quantiles=quantiles
            )
            replaced.append("length")
        self._refits.append((decided, "+".join(replaced) or "kept"))
        self._alarm.settled(len(self._ended), replaced=bool(replaced))
        for detector in self._detectors.values():
            detector.restart()
        for pace in self._paces:
            pace.restart()


def recovery_requests(
    errors: Float64, before: float, changed_at: int, until: int, *, window: int = 100, slack: float = 1.2
) -> int | None:
    """Requests after a change until the rolling median error is what it was.

    Args:
        errors: (n,) relative errors, NaN where there is none.
        before: their median before anything happened.
        changed_at: the first request after the change.
        until: the last, exclusive.
        window: requests of which the median is taken, all after the change: no recovery is shorter.
        slack: how much worse than before still counts.

    Returns:
        None: it never is.
    """
    after = np.flatnonzero(np.isfinite(errors[changed_at:until])) + changed_at
    for end in range(window, len(after) + 1):
        rows = after[end - window : end]
        if float(np.median(errors[rows])) <= slack * before:
            return int(rows[-1]) + 1 - changed_at
    return None
