"""A simulated cluster with a router's view of it: the door through which all simulation goes.

::

    cluster = Cluster(scenario.replicas, trace, staleness=scenario.staleness, seed=1)
    while cluster.next_request() is not None:
        cluster.dispatch(policy.decide(cluster.observe()).choice)
    cluster.finish()
    outcomes = cluster.outcomes()

What `observe` shows is what a real router would know at that moment: metrics as old as the last scrape,
and its own account of what it dispatched and what came back. The truth stays inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env import engine
from steersman.env import layout as at
from steersman.env.belief import Belief
from steersman.env.memory import Memory, StaticTrace
from steersman.env.observation import observe
from steersman.env.outcomes import OutcomeTable, outcome_table
from steersman.env.requests import RequestTable, request_table
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Observation, ReplicaSpec, Staleness
from steersman.traces.trace import Trace

FIRST_SLOTS = 256
"""Room for requests in flight at first; doubled when needed."""
_RAW_TTFT = REPLICA_INDEX["raw_ttft_s"]
_RAW_TPOT = REPLICA_INDEX["raw_tpot_s"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]


class Cluster:
    """A pool of replicas that serves a trace.

    Args:
        replicas: of one model, at least one.
        trace: with known output lengths. Turns of a session whose parent is in the trace arrive a think
            time after the parent ends, whatever became of it.
        output_quantiles: (len(trace), 2), predicted p50 and p90 of output tokens; None: the quantiles
            of all outputs of the trace, the same for every request.
        length_features: (len(trace), len(LENGTH_FEATURES)), where the caller has computed them.
        staleness: of the scraped metrics.
        prefix_cache: whether engines keep and share prefixes; a trace without hashes shares nothing.
        seed: of everything random, which is the times and losses of scrapes.
        stepped: play every iteration by itself; None and False play many at once where nothing happens
            in between, with the same results.

    The same arguments and the same choices give the same outcomes, bit for bit.

    Raises:
        ConfigError: no replicas, limits or intervals that would stop time, or block sizes that do not
            fit each other.
        TraceError: an output length is unknown.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaSpec],
        trace: Trace,
        *,
        output_quantiles: NDArray[np.floating] | None = None,
        length_features: NDArray[np.float32] | None = None,
        staleness: Staleness | None = None,
        prefix_cache: bool = True,
        seed: int = 0,
        stepped: bool | None = None,
    ) -> None:
        staleness = staleness or Staleness()
        _check(replicas, staleness)
        self.replicas = tuple(replicas)
        self.trace = trace
        profiles = np.stack([L.new_row(spec.profile) for spec in replicas])
        self.table = request_table(
            trace, profiles, output_quantiles=output_quantiles, length_features=length_features
        )
        static = _static(trace, self.table)
        self.memory = Memory(
            self.replicas,
            static,
            staleness=staleness,
            prefix_cache=prefix_cache,
            seed=seed,
            slots=min(FIRST_SLOTS, max(len(trace), 1)),
            stepped=bool(stepped),
        )
        self.belief: Belief | None = None
        """Which prefixes the router believes to be where; None where nothing can match."""
        if prefix_cache and len(trace.block_hashes):
            self.belief = Belief(self.replicas, static)
        self._observed: tuple[int, Observation] | None = None

    @property
    def now_s(self) -> float:
        """The time of the pending decision, or of the last event."""
        return self.memory.now_s

    @property
    def pending(self) -> int | None:
        """The trace row that waits for a decision."""
        row = self.memory.pending
        return None if row == at.NONE else row

    @property
    def state(self) -> NDArray[np.float64]:
        """(replicas, STATE_WIDTH): what the router knows now, a view. See `predictors/ledger.py`."""
        return self.memory.ledger

    @property
    def cost_accrued(self) -> float:
        """Weighted latency over service level, and misses, of all requests so far (`account.py`).

        Continuous in time but for misses and failures; its increments are a dense reward. When all
        work is done it is the sum of EVALUATION's request costs without their caps.
        """
        return float(engine.cost(self.memory.address))

    def next_request(self) -> int | None:
        """Advance to the next arrival that needs a decision; its trace row, or None when all arrived.

        Raises:
            RuntimeError: the last request was not dispatched.
        """
        if self.pending is not None:
            raise RuntimeError(f"request {self.pending} waits for dispatch()")
        row = int(engine.next_request(self.memory.address))
        return None if row == at.NONE else row

    def observe(self) -> Observation:
        """What the router knows about the pending request.

        Raises:
            RuntimeError: no request is pending.
        """
        row = self._pending_row()
        if self._observed is None or self._observed[0] != row:
            observation = observe(
                self.memory.ledger,
                self.table.features[row],
                self.match_tokens(),
                np.float64(self.memory.now_s),  # type: ignore[arg-type]
            )
            self._observed = row, observation
        return self._observed[1]

    @property
    def shares_prefixes(self) -> bool:
        """Whether anything can match at all."""
        return self.belief is not None

    def match_tokens(self) -> NDArray[np.float64]:
        """Prompt tokens of the pending request believed to be cached on each replica, (replicas,)."""
        if self.belief is None:
            return np.zeros(len(self.replicas))
        blocks = self.belief.match(self._pending_row())
        return blocks.astype(np.float64) * self.trace.block_tokens

    def dispatch(self, replica: int) -> None:
        """Send the pending request to a replica; -1 refuses it.

        A refused request, and one that can never fit the replica's memory or the model's window, ends
        as rejected; one sent to a replica that is down fails. Both at once, and at the full cost.

        Raises:
            RuntimeError: no request is pending.
            ValueError: there is no such replica.
        """
        self._pending_row()
        if not -1 <= replica < len(self.replicas):
            raise ValueError(f"replica {replica} is not in -1..{len(self.replicas) - 1}")
        if replica < 0:
            engine.dispatch(self.memory.address, -1, 0.0, 0.0, 0.0, 0.0)
            return
        features = self.observe().replicas[replica]
        row = self._pending_row()
        self.make_room()
        slot = engine.dispatch(
            self.memory.address,
            int(replica),
            float(self.table.output_p50[row]),
            float(features[_UNCACHED]),
            float(features[_RAW_TTFT]),
            float(features[_RAW_TPOT]),
        )
        if slot != at.NONE:
            self.believe(row, replica)

    def make_room(self) -> None:
        """Make sure that one more request can be put in flight."""
        if self.memory.free_slots == 0:
            self.memory.grow(2 * len(self.memory.sequences))

    def believe(self, row: int, replica: int) -> None:
        """The router's belief that a replica holds the prefix it was sent."""
        if self.belief is not None:
            self.belief.insert(int(replica), row)

    def finish(self, drain_s: float = 600.0) -> None:
        """Arrivals stop; what is in flight has so many seconds to end, the rest is unfinished.

        A pending request and those that had not arrived count as unfinished too; the latter have no
        arrival time.
        """
        engine.drain(self.memory.address, float(drain_s))

    def outcomes(self) -> OutcomeTable:
        """One row per row of the trace, as of now."""
        return outcome_table(self.trace, self.table, self.memory.outcomes)

    def clone(self) -> Cluster:
        """An independent cluster in the same state; the trace is shared."""
        twin = Cluster.__new__(Cluster)
        twin.replicas = self.replicas
        twin.trace = self.trace
        twin.table = self.table
        twin.memory = self.memory.copy()
        twin.belief = None if self.belief is None else self.belief.copy()
        twin._observed = self._observed
        return twin

    def set_health(self, replica: int, healthy: bool) -> None:
        """Break a replica, or bring it back with an empty cache. The router learns of it at once.

        All that it holds fails. The replica is not scraped while it is down.
        """
        if not 0 <= replica < len(self.replicas):
            raise ValueError(f"replica {replica} is not in 0..{len(self.replicas) - 1}")
        if healthy:
            engine.recover(self.memory.address, replica)
        else:
            engine.fail(self.memory.address, replica)
            if self.belief is not None:
                self.belief.forget(replica)
        self._observed = None

    def _pending_row(self) -> int:
        row = self.pending
        if row is None:
            raise RuntimeError("no request is pending; call next_request() first")
        return row


def _check(replicas: Sequence[ReplicaSpec], staleness: Staleness) -> None:
    """Refuse what a configuration file would not let through either, since it would never end."""
    if not replicas:
        raise ConfigError("a cluster needs at least one replica; 'replicas' is empty")
    if not (staleness.scrape_interval_s > 0 and 0 <= staleness.jitter < 1 and 0 <= staleness.loss <= 1):
        raise ConfigError(
            f"{staleness}: scrape_interval_s must be positive, jitter in [0, 1) and loss in [0, 1]"
        )
    for spec in replicas:
        if not 0 < spec.slowdown < float("inf"):
            raise ConfigError(
                f"replica '{spec.replica_id}': slowdown = {spec.slowdown} must be positive"
            )
        if min(spec.profile.max_num_seqs, spec.profile.max_batched_tokens) < 1:
            raise ConfigError(
                f"replica '{spec.replica_id}': max_num_seqs = {spec.profile.max_num_seqs} and "
                f"max_batched_tokens = {spec.profile.max_batched_tokens} must be at least 1"
            )


def _static(trace: Trace, table: RequestTable) -> StaticTrace:
    """What the engine reads of a trace."""
    n = len(trace)
    records: NDArray[Any] = np.zeros(n, dtype=at.TRACE)
    records["input_tokens"] = np.maximum(trace.input_tokens, 1)
    records["output_tokens"] = np.maximum(trace.output_tokens, 1)
    records["priority"] = np.clip(trace.priority, 0, at.PRIORITIES - 1)
    records["hash_start"] = trace.block_offsets[:-1]
    records["hash_count"] = np.diff(trace.block_offsets)
    records["think_time_s"] = np.maximum(trace.think_time_s, 0.0)
    records["arrival_s"] = trace.arrival_s
    records["weight"] = table.weight
    records["ttft_slo_s"] = table.ttft_slo_s
    records["tpot_slo_s"] = table.tpot_slo_s
    records["first_child"] = at.NONE
    records["next_sibling"] = at.NONE
    children = np.flatnonzero(trace.parent >= 0)
    for child in children[::-1].tolist():
        parent = int(trace.parent[child])
        records["next_sibling"][child] = records["first_child"][parent]
        records["first_child"][parent] = child
    return StaticTrace(
        records=records,
        roots=np.flatnonzero(trace.parent < 0),
        hashes=np.ascontiguousarray(trace.block_hashes),
        block_tokens=trace.block_tokens if len(trace.block_hashes) else 0,
        children=len(children),
    )
