"""The cluster that a log tells of: its traffic, its replicas as fast as they were, and how true that is.

Replicas of the same hardware profile and about the same speed are a kind; each kind's profile is fitted
to its own requests (`env/calibrate.py`). How true the whole is shows when what was logged is played in
it again, every request on the replica that served it: `fidelity` compares the quantiles of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from steersman.agents.offpolicy.hardware import profile_of_row
from steersman.env.calibrate import Calibration, ErrorLine, calibrate
from steersman.env.cluster import Cluster
from steersman.env.samples import Sample, samples_of
from steersman.predictors import ledger as L
from steersman.predictors.drift import LEAST_MEASURED
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.readers.outcomes import as_requests
from steersman.traces.scenario import ReplicaSpec, Staleness
from steersman.traces.schema import HardwareProfile, Status
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]

LEAST_REQUESTS = 100
"""Fewer tell of no cluster."""
SPEED_GAP = 0.15
"""Log of speeds: replicas of a profile that are further apart are of two kinds."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LEAST = {"ttft": LEAST_MEASURED["ttft"], "tpot": LEAST_MEASURED["tpot"], "e2e": LEAST_MEASURED["ttft"]}
"""Differences below it, in seconds, are none: what the way over the network takes."""


@dataclass(frozen=True)
class Kind:
    """Replicas that are alike."""

    profile: HardwareProfile
    """Fitted, or as it was configured."""
    replicas: tuple[str, ...]
    fit: Calibration | None
    """None where the configured profile stays."""
    note: str = ""
    """Why it stays."""


@dataclass(frozen=True)
class World:
    """n replicas, and the requests they served."""

    specs: tuple[ReplicaSpec, ...]
    believed: Float64
    """(n, STATE_WIDTH): what the router knew last, its configured profiles and learned biases."""
    trace: Trace
    choices: NDArray[np.int64]
    """(len(trace),): who served each."""
    measured: dict[str, Float64]
    """`ttft`, `tpot`, `e2e` of each request, (len(trace),) seconds; NaN unknown."""
    kinds: tuple[Kind, ...]
    staleness: Staleness
    prefix_cache: bool
    left_out: int
    """Requests of the log that are not in the trace: they failed, or another pool served them."""

    def cluster(self, trace: Trace, *, quantiles: Float64 | None = None, seed: int = 0) -> Cluster:
        """A fresh cluster, whose router believes what the logged one believed last.

        Args:
            quantiles: (len(trace), 2), predicted p50 and p90 of output tokens.
        """
        cluster = Cluster(
            self.specs,
            trace,
            output_quantiles=quantiles,
            staleness=self.staleness,
            prefix_cache=self.prefix_cache,
            seed=seed,
        )
        believe(cluster, self.believed)
        return cluster

    def fidelity(self) -> tuple[ErrorLine, ...]:
        """What was logged against the same requests on the same replicas in the model. `before` is not
        known and NaN."""
        cluster = self.cluster(self.trace)
        while (row := cluster.next_request()) is not None:
            cluster.dispatch(int(self.choices[row]))
        cluster.finish()
        played = cluster.outcomes()
        lines = []
        for name, own in (("ttft", played.ttft_s), ("tpot", played.tpot_s), ("e2e", played.e2e_s)):
            theirs = self.measured[name]
            both = np.isfinite(own) & np.isfinite(theirs) & (theirs > 0.0)
            if not both.any():
                continue
            for label, share in QUANTILES.items():
                wanted, found = (float(np.quantile(each[both], share)) for each in (theirs, own))
                error = 0.0 if abs(found - wanted) < LEAST[name] else found / wanted - 1.0
                lines.append(ErrorLine(f"{name}_{label}", wanted, math.nan, error))
        return tuple(lines)


def believe(cluster: Cluster, rows: Float64) -> None:
    """Have the cluster's router know profiles, means and biases as another one did, (n, STATE_WIDTH)."""
    known = [*range(L.BASE_WEIGHT + 1), L.MEAN_TTFT_S, L.MEAN_TPOT_S, L.MEAN_E2E_S]
    known += [L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT]
    cluster.state[:, known] = rows[:, known]


def build_world(records: Sequence[OutcomeRecord]) -> World:
    """The cluster behind the newest of these records: those since the pool last changed.

    Args:
        records: of one model, in any order.

    Raises:
        ConfigError: too few requests ended well on one and the same pool.
    """
    served = sorted(filter(_was_served, records), key=lambda record: record.arrival_unix_s)
    newest = _same_pool(served)
    if len(newest) < LEAST_REQUESTS:
        raise ConfigError(
            f"the log holds {len(newest)} requests that ended well since the pool last changed, "
            f"{LEAST_REQUESTS} are needed; log more traffic"
        )
    ids = newest[-1].replica_ids
    believed = _last_rows(newest, ids)
    caches = any(record.cached_tokens > 0 for record in newest)
    if not caches:  # the engines share no prefixes, whatever the router believes
        newest = [replace(record, block_hashes=(), block_tokens=0) for record in newest]
    kinds = tuple(_kinds(ids, believed, newest))
    profile_of = {name: kind.profile for kind in kinds for name in kind.replicas}
    trace, rows = _trace(newest)
    measured = {
        "ttft": np.array([newest[row].ttft_s for row in rows]),
        "tpot": np.array([newest[row].tpot_s for row in rows]),
        "e2e": np.array([newest[row].e2e_s for row in rows]),
    }
    return World(
        specs=tuple(ReplicaSpec(name, profile_of[name]) for name in ids),
        believed=believed,
        trace=trace,
        choices=np.array([ids.index(newest[row].served_by) for row in rows], dtype=np.int64),
        measured=measured,
        kinds=kinds,
        staleness=_staleness(newest),
        prefix_cache=caches,
        left_out=len(records) - len(newest),
    )


def _was_served(record: OutcomeRecord) -> bool:
    return (
        record.status is Status.OK
        and (record.output_tokens or 0) >= 1
        and record.input_tokens >= 1
        and record.state.shape == (len(record.replica_ids), L.STATE_WIDTH)
        and record.served_by in record.replica_ids
        and math.isfinite(record.arrival_unix_s)
    )


def _same_pool(served: Sequence[OutcomeRecord]) -> list[OutcomeRecord]:
    """Those since the pool last changed."""
    if not served:
        return []
    pool = set(served[-1].replica_ids)
    first = len(served)
    while first > 0 and set(served[first - 1].replica_ids) == pool:
        first -= 1
    return list(served[first:])


def _last_rows(records: Sequence[OutcomeRecord], ids: tuple[str, ...]) -> Float64:
    last = max(records, key=lambda record: (record.arrival_unix_s, record.decided_at_s))
    order = [last.replica_ids.index(name) for name in ids]
    rows: Float64 = last.state[order]
    return rows


def _kinds(ids: tuple[str, ...], rows: Float64, records: Sequence[OutcomeRecord]) -> list[Kind]:
    """Kinds of replicas, each fitted to its own requests."""
    by_profile: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows):
        by_profile.setdefault(row[: L.BASE_WEIGHT + 1].tobytes(), []).append(i)
    samples = samples_of(records)
    return [
        _fitted(rows[group[0]], tuple(ids[i] for i in group), samples, records[-1].model)
        for alike in by_profile.values()
        for group in _by_speed(alike, rows[:, L.LOG_BIAS_TPOT])
    ]


def _by_speed(members: Sequence[int], log_speed: Float64) -> list[list[int]]:
    """Cut where two neighbours in speed are further apart than `SPEED_GAP`."""
    ordered = sorted(members, key=lambda i: float(log_speed[i]))
    groups = [[ordered[0]]]
    for last, following in pairwise(ordered):
        if log_speed[following] - log_speed[last] > SPEED_GAP:
            groups.append([])
        groups[-1].append(following)
    return groups


def _fitted(row: Float64, names: tuple[str, ...], samples: Sequence[Sample], model: str) -> Kind:
    """The configured profile, or a fitted one that is nearer to what it has not seen."""
    profile = profile_of_row(row, model)
    own = [sample for sample in samples if sample.replica in names]
    try:
        fit = calibrate(own, profile)
    except ConfigError as error:
        return Kind(profile, names, None, str(error))
    medians = [line for line in fit.errors if line.figure.endswith("_p50")]
    before, after = (
        sum(abs(getattr(line, side)) for line in medians) / max(len(medians), 1)
        for side in ("before", "after")
    )
    if not after <= before:
        note = f"fitting it does not bring it nearer ({before:.0%} off before, {after:.0%} after)"
        return Kind(profile, names, None, note)
    return Kind(fit.profile, names, fit)


def _trace(records: Sequence[OutcomeRecord]) -> tuple[Trace, list[int]]:
    """The requests as a trace, and which record each of its rows is."""
    placed = list(as_requests(records, records[0].model))
    row_of = {request.request_id: int(place) - 1 for place, request in placed}
    trace = Trace.from_requests("log", (request for _, request in placed))
    return trace, [row_of[name] for name in trace.request_ids]


def _staleness(records: Sequence[OutcomeRecord]) -> Staleness:
    """Scrapes are as far apart as twice the median age of what was known."""
    ages = [record.decided_at_s - record.state[:, L.SCRAPED_AT_S] for record in records[-500:]]
    known = np.concatenate(ages)
    known = known[np.isfinite(known)]
    usual = Staleness()
    if not len(known):
        return usual
    interval_s = float(np.clip(2.0 * np.median(known), 0.02, 10.0))
    return replace(usual, scrape_interval_s=interval_s)
