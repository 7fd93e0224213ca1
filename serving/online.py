"""Are predictions still right? Every outcome against its prediction, by model and hardware (SPEC A6).

Predictions are watched by model and hardware, with all that corrects them; the pace of each replica
(`predictors/pace.py`) without. What cannot say anything is left out: what did not end well, second
attempts, and the first answers of a replica that had just come up. The bias corrector learns elsewhere,
and at once (`predictors/ledger.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steersman.predictors import ledger as L
from steersman.predictors import pace as P
from steersman.predictors.drift import LEAST_MEASURED, DriftDetector, LiveError
from steersman.predictors.pace import Pace
from steersman.serving.exchange import Exchange
from steersman.serving.metrics import RouterMetrics
from steersman.serving.replica import Replica
from steersman.traces.schema import Outcome, Status

logger = logging.getLogger("steersman.serving")

Key = tuple[str, str, str]
"""Model, hardware profile, and what is predicted: `ttft`, `tpot` or `output`; `raw_ttft` and `raw_tpot`
are the estimates without correction."""
ANY = "any"
"""Hardware of the output length, which does not depend on it."""


@dataclass
class Watched:
    """One kind of prediction."""

    least: float
    live: LiveError = field(init=False)
    detector: DriftDetector = field(default_factory=DriftDetector)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another model predicts."""
        self.live = LiveError(self.least)
        self.detector.restart()


class OnlineErrors(Collector):
    """Live errors and drift of everything that is predicted. Constant work per outcome."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._watched: dict[Key, Watched] = {}
        self._paces: WeakKeyDictionary[Replica, dict[str, Pace]] = WeakKeyDictionary()
        """By model; gone with the replica."""
        self.outcomes = 0
        """That said something, since the start."""
        metrics.registry.register(self)

    @property
    def drifted(self) -> list[Key]:
        """Predictions that have drifted since the last restart; estimates once for each replica."""
        drifted = [key for key, watched in self._watched.items() if watched.detector.drifted]
        for replica, model, pace in self._each_pace():
            drifted += [(model, replica.profile.name, P.RAW + target) for target in pace.drifted]
        return drifted

    def restart(self) -> None:
        """Other models predict from now on, or the world is accepted as it is."""
        for watched in self._watched.values():
            watched.restart()
        for _, _, pace in self._each_pace():
            pace.restart()

    def observe(self, exchange: Exchange, outcome: Outcome) -> None:
        """A request ended."""
        route = exchange.route
        if route is None or outcome.status is not Status.OK or outcome.retries:
            return
        if L.is_cold(route.snapshot.state[route.decision.choice]):
            return
        self.outcomes += 1
        prepared, hardware = exchange.prepared, route.replica.profile.name
        ttft_p50, ttft_p90, tpot_p50, tpot_p90 = route.predicted.tolist()
        if exchange.first_token_s is not None:
            ttft_s = exchange.first_token_s - route.dispatched_s
            self.compare((prepared.pool.model, hardware, "ttft"), ttft_s, ttft_p50, ttft_p90)
            self.compare((prepared.pool.model, hardware, "tpot"), outcome.tpot_s, tpot_p50, tpot_p90)
            model, replica = prepared.pool.model, route.replica
            self.keep_pace(model, replica, "ttft", ttft_s, route.raw_ttft_s)
            self.keep_pace(model, replica, "tpot", outcome.tpot_s, route.raw_tpot_s)
        tokens = float(outcome.output_tokens or 0)
        self.compare(
            (prepared.pool.model, ANY, "output"), tokens, prepared.output_p50, prepared.output_p90
        )

    def compare(self, key: Key, actual: float, p50: float, p90: float) -> None:
        """A prediction, and what came of it; nothing if that is not positive and finite."""
        if not 0.0 < actual < math.inf:
            return  # an answer of one token has no time per token
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = Watched(LEAST_MEASURED[key[2]])
        watched.live.observe(actual, p50, p90)
        if watched.detector.observe(math.log(actual / p50)):
            self._metrics.drift_alarms.labels(*key).inc()
            logger.warning(
                "predictions of %s for %s on %s have drifted: the median error is %.0f %%",
                *(key[2], key[0], key[1], 100.0 * watched.live.mdape),
            )

    def keep_pace(
        self, model: str, replica: Replica, target: str, actual_s: float, estimated_s: float
    ) -> None:
        """What a replica took, and what it was to take without any correction."""
        pace = self._pace_of(replica, model)
        if pace.observe(target, actual_s, estimated_s):
            self._metrics.drift_alarms.labels(model, replica.profile.name, P.RAW + target).inc()
            logger.warning(
                "%s does not take as long as it did: %s of %s is %.2f times the estimate by now",
                *(replica.id, target, model, actual_s / estimated_s),
            )

    def _pace_of(self, replica: Replica, model: str) -> Pace:
        paces = self._paces.get(replica)
        if paces is None:
            paces = self._paces[replica] = {}
        pace = paces.get(model)
        if pace is None:
            pace = paces[model] = Pace()
        return pace

    def _each_pace(self) -> Iterator[tuple[Replica, str, Pace]]:
        for replica, paces in list(self._paces.items()):
            for model, pace in paces.items():
                yield replica, model, pace

    def _statistics(self) -> dict[Key, float]:
        """Of predictions; and of estimates, the highest among replicas of the same hardware."""
        found = {key: watched.detector.statistic for key, watched in self._watched.items()}
        for replica, model, pace in self._each_pace():
            for target in P.TARGETS:
                key = (model, replica.profile.name, P.RAW + target)
                found[key] = max(found.get(key, 0.0), pace.statistic(target))
        return found

    def collect(self) -> Iterable[Metric]:
        """The figures, for the metrics page."""
        labels = ["model", "hardware", "target"]
        error = GaugeMetricFamily(
            "steersman_prediction_mdape", "Median |predicted - actual| / actual, live", labels=labels
        )
        coverage = GaugeMetricFamily(
            "steersman_prediction_coverage_p90", "Share of outcomes within p90, live", labels=labels
        )
        drift = GaugeMetricFamily(
            "steersman_prediction_drift", "Drift statistic; above 1 it has drifted", labels=labels
        )
        for key, watched in self._watched.items():
            error.add_metric(key, watched.live.mdape)
            coverage.add_metric(key, watched.live.coverage_p90)
        for key, statistic in self._statistics().items():
            drift.add_metric(key, statistic)
        yield from (error, coverage, drift)
