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

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steersman.env import engine, lifecycle
from steersman.env import layout as at
from steersman.env.belief import Belief
from steersman.env.checks import check
from steersman.env.dispatching import dispatch
from steersman.env.drains import drain
from steersman.env.failures import fail, recover
from steersman.env.holding import give_up, hold_one, take_up_one
from steersman.env.lifecycle import Phase, schedule
from steersman.env.memory import Memory, plain
from steersman.env.observation import observe
from steersman.env.operation import operate
from steersman.env.outcomes import OutcomeTable, outcome_table
from steersman.env.requests import request_table
from steersman.env.static_trace import static_trace
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.scenario import Conditions, ReplicaSpec, Staleness
from steersman.traces.schema import Observation
from steersman.traces.trace import Trace

FIRST_SLOTS = 256
"""Room for requests in flight at first; doubled when needed."""
_RAW_TTFT = REPLICA_INDEX["raw_ttft_s"]
_RAW_TPOT = REPLICA_INDEX["raw_tpot_s"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]
_MATCH = REPLICA_INDEX["match_fraction"]


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
        conditions: what happens to replicas and when, how patient clients are, how replicas share GPUs,
            and options of the engine; None: nothing happens.
        stepped: play every iteration by itself; None and False play many at once where nothing happens
            in between, with the same results. With standby replicas, any conditions, pipelines or
            other batching, and from the first `start`, `drain` or `set_slowdown` on, iterations are
            played one by one in any case.

    The same arguments and the same choices give the same outcomes, bit for bit.

    Raises:
        ConfigError: no replicas, limits or intervals that would stop time, block sizes that do not
            fit each other, a change that cannot happen, or replicas that cannot share a GPU.
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
        conditions: Conditions | None = None,
        stepped: bool | None = None,
    ) -> None:
        conditions = conditions or Conditions()
        staleness = staleness or Staleness()
        check(replicas, staleness, conditions)
        self.replicas = tuple(replicas)
        self.trace = trace
        profiles = np.stack([L.new_row(spec.profile) for spec in replicas])
        self.table = request_table(
            trace, profiles, output_quantiles=output_quantiles, length_features=length_features
        )
        static = static_trace(
            trace, self.table, conditions.patience_s, priorities=conditions.priority_scheduling
        )
        eventful = replace(conditions, priority_scheduling=True) != Conditions()
        self.memory = Memory(
            self.replicas,
            static,
            staleness=staleness,
            prefix_cache=prefix_cache,
            seed=seed,
            slots=min(FIRST_SLOTS, max(len(trace), 1)),
            stepped=bool(stepped) or eventful or not all(map(plain, replicas)),
            changes=schedule(conditions.changes, len(replicas)),
            most_adapters=conditions.adapters.most if conditions.adapters else 0,
        )
        operate(conditions, self.replicas, self.memory)
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

    @property
    def exhausted(self) -> bool:
        """Whether all requests of the trace have arrived, or never will."""
        common = self.memory.cluster[0]
        left = len(self.memory.trace.roots) - common["next_root"] + common["born"] + common["unborn"]
        return bool(left == 0)

    def next_request(self, until_s: float = math.inf) -> int | None:
        """Advance to the next arrival that needs a decision; its trace row, or None when all arrived.

        Args:
            until_s: stop there if nothing arrives by then, and return None; `exhausted` tells whether
                more will arrive. For those who also act between arrivals, such as a scaler.

        Raises:
            RuntimeError: the last request was not dispatched.
            ValueError: `until_s` has passed.
        """
        if self.pending is not None:
            raise RuntimeError(f"request {self.pending} waits for dispatch()")
        if until_s < self.now_s:
            raise ValueError(f"until_s = {until_s} has passed; it is {self.now_s}")
        row = int(engine.next_request_by(self.memory.address, float(until_s)))
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
                identity=self.table.identity[row],
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
        self.belief.forget_lost(self.memory)
        blocks = self.belief.match(self._pending_row())
        return blocks.astype(np.float64) * self.trace.block_tokens

    def dispatch(self, replica: int, *, decode: int | None = None) -> None:
        """Send the pending request to a replica; -1 refuses it.

        With disaggregation, `decode` names the replica that goes on after the first token, if that can
        take it then; None: the one whose KV cache is used least at that time. A replica that only
        decodes takes nothing here: a request sent to it fails.

        A refused request, and one that can never fit the replica's memory or the model's window, ends
        as rejected; one sent to a replica that is down, draining or not there fails. Both at once, and
        at the full cost.

        Raises:
            RuntimeError: no request is pending.
            ValueError: there is no such replica.
        """
        self._pending_row()
        if not -1 <= replica < len(self.replicas):
            raise ValueError(f"replica {replica} is not in -1..{len(self.replicas) - 1}")
        if replica < 0:
            dispatch(self.memory.address, -1, 0.0, 0.0, 0.0, 0.0)
            return
        features = self.observe().replicas[replica]
        row = self._pending_row()
        self.make_room()
        slot = dispatch(
            self.memory.address,
            int(replica),
            float(self.table.output_p50[row]),
            float(features[_UNCACHED]),
            float(features[_RAW_TTFT]),
            float(features[_RAW_TPOT]),
            float(features[_MATCH]),
        )
        if slot != at.NONE:
            self.believe(row, replica)
            if decode is not None:
                self._check_replica(decode)
                self.memory.facts["target"][slot] = decode

    def hold(self) -> None:
        """Decide about the pending request later: time goes on, and its client waits.

        Raises:
            RuntimeError: no request is pending.
        """
        self._pending_row()
        hold_one(self.memory.address)

    def take_up(self, row: int) -> None:
        """A request that was held is the pending one again; its TTFT counts from its arrival.

        Raises:
            RuntimeError: another one is pending.
            ValueError: this one is not held.
        """
        if self.pending is not None:
            raise RuntimeError(f"request {self.pending} waits for dispatch()")
        outcome = self.memory.outcomes[row]
        untouched = outcome["status"] == at.PENDING and outcome["replica"] == at.NONE
        if not untouched or math.isnan(outcome["arrival_s"]):
            raise ValueError(f"request {row} is not held")
        self._observed = None
        take_up_one(self.memory.address, row)

    def withdraw(self) -> None:
        """The client of the pending request goes away; it ends as cancelled.

        Raises:
            RuntimeError: no request is pending.
        """
        self._pending_row()
        give_up(self.memory.address, at.CANCELLED)

    def make_room(self, requests: int = 1) -> None:
        """Make sure that so many more requests can be put in flight, by this cluster and its clones."""
        lacking = requests - self.memory.free_slots
        if lacking > 0:
            slots = len(self.memory.sequences)
            self.memory.grow(slots + max(slots, lacking))

    def believe(self, row: int, replica: int) -> None:
        """The router's belief that a replica holds the prefix it was sent."""
        if self.belief is not None:
            self.belief.forget_lost(self.memory)
            self.belief.insert(self.memory, int(replica), row)

    def finish(self, drain_s: float = 600.0) -> None:
        """Arrivals stop; what is in flight has so many seconds to end, the rest is unfinished.

        A pending request and those that had not arrived count as unfinished too; the latter have no
        arrival time.
        """
        drain(self.memory.address, float(drain_s))

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

        All that it holds fails. The replica is not scraped while it is down. One that is starting or
        draining when it breaks is gone.
        """
        self._check_replica(replica)
        if healthy:
            recover(self.memory.address, replica)
        else:
            fail(self.memory.address, replica)
        self._observed = None

    def set_slowdown(self, replica: int, factor: float) -> None:
        """A replica's iterations take `factor` times as long from the next one on; 1 is its spec's time.

        Raises:
            ValueError: there is no such replica, or the factor is not positive.
        """
        self._check_replica(replica)
        if not 0.0 < factor < math.inf:
            raise ValueError(f"factor = {factor} must be positive")
        engine.step_only(self.memory.address)
        self.memory.replicas["factor"][replica] = factor

    def start(self, replica: int, *, cold_start_s: float | None = None) -> bool:
        """Start a replica that is gone; one that drains serves on at once. It is paid for from now on.

        Args:
            cold_start_s: until it serves; None: its spec's.

        Returns:
            False, and nothing changes, if it serves or starts already.
        """
        self._check_replica(replica)
        delay_s = self.replicas[replica].cold_start_s if cold_start_s is None else cold_start_s
        if not 0.0 <= delay_s < math.inf:
            raise ValueError(f"cold_start_s = {delay_s} must not be negative or infinite")
        self._observed = None
        engine.step_only(self.memory.address)
        return bool(lifecycle.start(self.memory.address, replica, float(delay_s)))

    def add(self, *, profile: str | None = None, cold_start_s: float | None = None) -> int | None:
        """Start the first replica that is gone (of a profile, if named); its number, or None."""
        for replica in np.flatnonzero(self.memory.replicas["phase"] == at.GONE).tolist():
            if profile is None or self.replicas[replica].profile.name == profile:
                self.start(replica, cold_start_s=cold_start_s)
                return int(replica)
        return None

    def drain(self, replica: int) -> bool:
        """Take nothing new there, finish what it has, then it is gone; at once if it has nothing.

        Returns:
            False, and nothing changes, if it is draining or gone already.
        """
        self._check_replica(replica)
        self._observed = None
        engine.step_only(self.memory.address)
        return bool(lifecycle.drain_replica(self.memory.address, replica))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Where each replica is in its life."""
        return tuple(Phase(phase) for phase in self.memory.replicas["phase"].tolist())

    @property
    def billed_s(self) -> NDArray[np.float64]:
        """(replicas,): for how long each has been paid for: from its start until it was gone."""
        owners = self.memory.replicas
        billed: NDArray[np.float64] = owners["billed_s"] + np.maximum(
            self.now_s - owners["billed_from_s"], 0.0
        )
        return billed

    @property
    def gpu_hours(self) -> float:
        """What has been paid for so far, in hours of single GPUs."""
        gpus = [spec.profile.tensor_parallel * spec.profile.pipeline_parallel for spec in self.replicas]
        return float(self.billed_s @ np.array(gpus)) / 3600.0

    @property
    def cost_usd(self) -> float:
        """What has been paid so far, at the profiles' prices."""
        return float(self.billed_s @ [spec.profile.cost_per_hour for spec in self.replicas]) / 3600.0

    def _check_replica(self, replica: int) -> None:
        if not 0 <= replica < len(self.replicas):
            raise ValueError(f"replica {replica} is not in 0..{len(self.replicas) - 1}")

    def _pending_row(self) -> int:
        row = self.pending
        if row is None:
            raise RuntimeError("no request is pending; call next_request() first")
        return row
