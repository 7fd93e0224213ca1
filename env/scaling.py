"""Scaling a cluster: what a scaler may do, what it sees, and what that costs.

What the scaler sees is what a real one would: the router's account of the replicas, its own requests'
times to first token, and the phases it is told. Who plays the requests between two decisions is in
`scaling_batch.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.lifecycle import Phase
from steersman.predictors import ledger as L
from steersman.predictors.load import load_now
from steersman.traces.errors import ConfigError

SCALING_FEATURES = (
    "arrivals_per_s",  # since the last decision
    "arrivals_per_s_60s",
    "arrival_trend",  # (last 60 s - last 300 s) / last 300 s
    "prompt_tokens_per_s",  # since the last decision
    "desired",  # replicas serving or pending
    "serving",
    "pending",
    "draining",
    "broken",
    "minimum",
    "maximum",
    "next_ready_s",  # until the next pending replica serves; 0: none is pending
    "batch_use",  # running over batch slots, mean of the serving replicas
    "batch_use_max",
    "batch_use_60s",  # its mean over the last 60 s of decisions
    "kv_use",
    "kv_use_max",
    "waiting",  # requests in the engines' queues
    "in_flight",
    "ttft_over_slo",  # mean over requests dispatched in the last 60 s; what waits counts as it is
    "ttft_over_slo_p99",
    "slo_missed",  # share of them whose TTFT has missed its service level
    "tpot_over_slo",  # mean over those that have ended
    "since_change_s",  # since the number of replicas was last changed, at most an hour
    "cooldown_s",  # until it may be changed again
    "last_change",  # replicas
    "usd_per_hour",
    "budget_left",  # share of the budget not used; 1 without one
    "hour_sin",
    "hour_cos",
)
SCALING_INDEX = {name: column for column, name in enumerate(SCALING_FEATURES)}
SHORT_S, LONG_S = 60.0, 300.0
"""Windows of the means."""


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """What a scaler may do and what replicas cost it.

    Raises:
        ConfigError: a number that makes no sense.
    """

    interval_s: float = 15.0
    """Between decisions."""
    changes: tuple[int, ...] = (-4, -2, -1, 0, 1, 2, 4, 8)
    """What the actions add to the desired number of replicas; 0 is among them."""
    cooldown_s: float = 60.0
    """After a change nothing is changed for so long."""
    minimum: int = 1
    maximum: int | None = None
    """None: as many replicas as the cluster has."""
    budget_usd_per_hour: float | None = None
    """No growth beyond; None: no limit."""
    price_per_usd: float = 2000.0
    """Reward for a dollar saved, in units of J: at 1.80 dollars an hour a replica-second costs 1, half a
    missed service level."""

    def __post_init__(self) -> None:
        """Refuse what could not be played."""
        problem = ""
        if not 0.0 < self.interval_s < math.inf:
            problem = f"interval_s = {self.interval_s} must be positive"
        elif 0 not in self.changes:
            problem = f"changes = {self.changes} must contain 0"
        elif not 0.0 <= self.cooldown_s < math.inf:
            problem = f"cooldown_s = {self.cooldown_s} must be 0 or more"
        elif self.minimum < 1:
            problem = f"minimum = {self.minimum} must be at least 1"
        elif self.maximum is not None and self.maximum < self.minimum:
            problem = f"maximum = {self.maximum} is less than minimum = {self.minimum}"
        elif self.budget_usd_per_hour is not None and not self.budget_usd_per_hour > 0.0:
            problem = f"budget_usd_per_hour = {self.budget_usd_per_hour} must be positive"
        elif not 0.0 <= self.price_per_usd < math.inf:
            problem = f"price_per_usd = {self.price_per_usd} must be 0 or more"
        if problem:
            raise ConfigError(f"scaling rules: {problem}")


class Scaling:
    """One cluster, scaled: `act`, then a `note` of every request that is dispatched, then `settle`.

    Args:
        cluster: nothing dispatched yet. Replicas that may be added are on standby.
        rules: what may be done.

    Raises:
        ConfigError: the cluster has fewer replicas than the rules' minimum, or more serve at first than
            their maximum.
    """

    def __init__(self, cluster: Cluster, rules: ScalingRules) -> None:
        self.cluster = cluster
        self.rules = rules
        size = len(cluster.replicas)
        self._maximum = size if rules.maximum is None else min(rules.maximum, size)
        self._prices = np.array([spec.profile.cost_per_hour for spec in cluster.replicas])
        self.choices: deque[int] = deque(maxlen=64)
        """Where the last requests were sent."""
        self._recent: deque[tuple[float, int]] = deque()  # when dispatched, row
        self._arrivals: deque[tuple[float, int]] = deque([(0.0, 0)])  # time, arrivals up to then
        self._uses: deque[tuple[float, float]] = deque()  # time, batch use
        self.arrived = 0
        """Requests up to now."""
        self._tokens = 0
        self._changed_s = -math.inf
        self._last_change = 0
        self._ended = False
        self._note_use()
        self._spent = self._account()
        desired = self.desired
        if not rules.minimum <= desired <= self._maximum:
            raise ConfigError(
                f"scaling rules: {desired} of {size} replicas serve at first, which is not between "
                f"minimum = {rules.minimum} and maximum = {self._maximum}"
            )

    @property
    def desired(self) -> int:
        """Replicas that serve or will."""
        return sum(phase in (Phase.SERVING, Phase.PENDING) for phase in self.cluster.phases)

    @property
    def ended(self) -> bool:
        """Whether all requests have arrived and their work is drained."""
        return self._ended

    def effect(self, action: int) -> int:
        """By how many replicas an action would change the desired number now.

        Nothing during the cooldown; otherwise as much of it as minimum, maximum and budget allow. Where
        replicas went on their own, any action brings their number back to the minimum.
        """
        desired = self.desired
        wanted = min(max(desired + self.rules.changes[action], self.rules.minimum), self._maximum)
        if self._cooldown_s() > 0.0 or wanted == desired:
            return 0
        if wanted < desired:
            return wanted - desired
        return min(wanted - desired, len(self._affordable()))

    def mask(self) -> NDArray[np.bool_]:
        """(actions,): which do what they say; the others do less, or nothing."""
        changes = self.rules.changes
        return np.array([self.effect(action) == change for action, change in enumerate(changes)])

    def act(self, action: int) -> float:
        """Start or drain replicas; until when the requests are to be played now."""
        change = self.effect(action)
        if change > 0:
            for replica in self._affordable()[:change]:
                self.cluster.start(replica)
        elif change < 0:
            for replica in self._dispensable()[:-change]:
                self.cluster.drain(replica)
        if change:
            self._changed_s = self.cluster.now_s
            self._last_change = change
        self._arrivals.append((self.cluster.now_s, self.arrived))
        self._tokens = 0
        return self.cluster.now_s + self.rules.interval_s

    def note(self, row: int, choice: int) -> None:
        """A request was dispatched just now."""
        self.choices.append(choice)
        self._recent.append((self.cluster.now_s, row))
        self.arrived += 1
        self._tokens += int(self.cluster.trace.input_tokens[row])

    def settle(self) -> float:
        """The requests until the next decision were played: the reward.

        That is minus the cost accrued (`Cluster.cost_accrued`), and minus the price of the replicas paid
        for meanwhile. After the last arrival all work is drained; the last reward includes that.
        """
        if self.cluster.exhausted:
            self.cluster.finish()
            self._ended = True
        self._note_use()
        before, self._spent = self._spent, self._account()
        return before - self._spent

    def observe(self) -> NDArray[np.float32]:
        """(len(SCALING_FEATURES),): what the scaler knows now."""
        cluster, now_s = self.cluster, self.cluster.now_s
        phases = np.array(cluster.phases)
        serves = self._serves()
        use, kv, waiting = self._load(serves)
        ready_s = cluster.memory.replicas["ready_s"][phases == Phase.PENDING]
        short, long = self._rate(SHORT_S), self._rate(LONG_S)
        since_s, arrived = self._arrivals[-1]
        elapsed_s = max(now_s - since_s, 1e-9)
        usd = self._usd_per_hour()
        budget = self.rules.budget_usd_per_hour
        angle = 2.0 * math.pi * self._hour() / 24.0
        values = {
            "arrivals_per_s": (self.arrived - arrived) / elapsed_s,
            "arrivals_per_s_60s": short,
            "arrival_trend": (short - long) / long if long > 0.0 else 0.0,
            "prompt_tokens_per_s": self._tokens / elapsed_s,
            "desired": self.desired,
            "serving": serves.sum(),
            "pending": (phases == Phase.PENDING).sum(),
            "draining": (phases == Phase.DRAINING).sum(),
            "broken": ((phases == Phase.SERVING) & ~serves).sum(),
            "minimum": self.rules.minimum,
            "maximum": self._maximum,
            "next_ready_s": ready_s.min() - now_s if len(ready_s) else 0.0,
            "batch_use": self._uses[-1][1],
            "batch_use_max": use.max(initial=0.0),
            "batch_use_60s": np.mean([each for _, each in self._uses]),
            "kv_use": kv.mean() if len(kv) else 0.0,
            "kv_use_max": kv.max(initial=0.0),
            "waiting": waiting,
            "in_flight": cluster.state[:, L.INFLIGHT].sum(),
            **self._latency(),
            "since_change_s": min(now_s - self._changed_s, 3600.0),
            "cooldown_s": self._cooldown_s(),
            "last_change": self._last_change,
            "usd_per_hour": usd,
            "budget_left": 1.0 if budget is None else max(1.0 - usd / budget, -1.0),
            "hour_sin": math.sin(angle),
            "hour_cos": math.cos(angle),
        }
        return np.array([values[name] for name in SCALING_FEATURES], dtype=np.float32)

    def _account(self) -> float:
        """Cost of the requests and price of the replicas up to now."""
        return self.cluster.cost_accrued + self.rules.price_per_usd * self.cluster.cost_usd

    def _cooldown_s(self) -> float:
        return max(self._changed_s + self.rules.cooldown_s - self.cluster.now_s, 0.0)

    def _usd_per_hour(self) -> float:
        """Of all replicas that are paid for."""
        phases = np.array(self.cluster.phases)
        return float(self._prices[phases != Phase.GONE].sum())

    def _affordable(self) -> list[int]:
        """Replicas that can be had, in the order of use: those that drain serve on at no new cost."""
        budget = self.rules.budget_usd_per_hour
        left = math.inf if budget is None else budget - self._usd_per_hour() + 1e-9
        phases = self.cluster.phases
        found = [r for r, phase in enumerate(phases) if phase == Phase.DRAINING]
        for replica, phase in enumerate(phases):
            if phase == Phase.GONE and self._prices[replica] <= left:
                left -= self._prices[replica]
                found.append(replica)
        return found

    def _dispensable(self) -> list[int]:
        """Replicas that can go, in this order: the last to be ready, the broken, the least busy."""
        phases = self.cluster.phases
        ready_s = self.cluster.memory.replicas["ready_s"]
        state = self.cluster.state

        def rank(replica: int) -> tuple[float, float, int]:
            if phases[replica] == Phase.PENDING:
                return 0.0, -float(ready_s[replica]), replica
            return 1.0 + state[replica, L.HEALTHY], float(state[replica, L.INFLIGHT]), replica

        there = [r for r, phase in enumerate(phases) if phase in (Phase.PENDING, Phase.SERVING)]
        return sorted(there, key=rank)

    def _serves(self) -> NDArray[np.bool_]:
        """Which replicas serve and are well."""
        serving = np.array(self.cluster.phases) == Phase.SERVING
        up: NDArray[np.bool_] = serving & (self.cluster.state[:, L.HEALTHY] > 0)
        return up

    def _note_use(self) -> None:
        """Remember how busy the replicas are."""
        use, _, _ = self._load(self._serves())
        self._uses.append((self.cluster.now_s, float(use.mean()) if len(use) else 0.0))
        while self._uses[0][0] < self.cluster.now_s - SHORT_S:
            self._uses.popleft()

    def _load(self, serves: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Batch-slot and KV use of each serving replica, and the requests that wait."""
        state = self.cluster.state[serves]
        load = load_now(state)
        use: NDArray[np.float64] = load.running / state[:, L.MAX_NUM_SEQS]
        return use, load.kv_usage, float(load.waiting.sum())

    def _rate(self, window_s: float) -> float:
        """Arrivals per second over the window, or since the start."""
        now_s = self.cluster.now_s
        while len(self._arrivals) > 1 and self._arrivals[1][0] <= now_s - LONG_S:
            self._arrivals.popleft()
        begin_s, arrived = self._arrivals[0]
        for at_s, count in self._arrivals:
            if at_s > now_s - window_s + 1e-9:
                break
            begin_s, arrived = at_s, count
        return (self.arrived - arrived) / max(now_s - begin_s, 1e-9)

    def _latency(self) -> dict[str, float]:
        """Of the requests that were dispatched in the last minute."""
        now_s = self.cluster.now_s
        while self._recent and self._recent[0][0] < now_s - SHORT_S:
            self._recent.popleft()
        names = ("ttft_over_slo", "ttft_over_slo_p99", "slo_missed", "tpot_over_slo")
        if not self._recent:
            return dict.fromkeys(names, 0.0)
        rows = np.array([row for _, row in self._recent])
        outcomes = self.cluster.memory.outcomes[rows]
        table = self.cluster.table
        first_s = outcomes["first_token_s"]
        until_s = np.where(np.isnan(first_s), now_s, first_s)
        ttft = (until_s - outcomes["arrival_s"]) / table.ttft_slo_s[rows]
        ended = ~np.isnan(first_s) & ~np.isnan(outcomes["end_s"])
        decoding_s = outcomes["end_s"][ended] - first_s[ended]
        tpot = (
            decoding_s / np.maximum(outcomes["produced"][ended] - 1, 1) / table.tpot_slo_s[rows][ended]
        )
        refused = np.isnan(first_s) & ~np.isnan(outcomes["end_s"])
        figures = (
            ttft.mean(),
            np.quantile(ttft, 0.99),
            (refused | (ttft > 1.0)).mean(),
            tpot.mean() if len(tpot) else 0.0,
        )
        return dict(zip(names, (float(figure) for figure in figures), strict=True))

    def _hour(self) -> float:
        """Of the day: the last arrival's, or else of the simulation's own clock."""
        if self._recent:
            hour = float(self.cluster.trace.hour_of_day[self._recent[-1][1]])
            if not math.isnan(hour):
                return hour
        return self.cluster.now_s / 3600.0 % 24.0
