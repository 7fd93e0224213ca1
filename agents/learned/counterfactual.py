"""Learning from what every choice would have cost: all-action policy improvement.

A return says how well an episode went, and little about one of its thousand choices. The cluster model
can be asked directly: at a state, what would each replica have added to the cost, with everything else
as it was (`env/counterfactual.py`)? With the advantage of *every* action at hand, the policy gradient
needs no sampled actions and no critic: the loss is the expected added cost under the policy,

    L(θ) = mean over states of  w Σ_a π_θ(a | s) (c(s, a) - mean_a' c(s, a'))

in rounds of small steps: practise with the policy as it is (some actions drawn at random, so that
recovering from a bad state is learned too), ask, and improve a little on the answers of the latest
rounds. `w` is one over the mean cost of a request on that cluster, since ratios are compared.

Two things must not be had cheaper. The horizon: a slow replica seems a bargain as long as the requests
that will meet what it is still busy with are not counted (on `mixed`, deviations from marginal cost
that looked 0.9 better over 10 s were worth nothing over 40 s). And the steps: an answer holds while the
others choose as they did; a policy that follows all answers at once has everybody on one replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from steersman.agents.learned.config import CounterfactualSettings
from steersman.agents.learned.export import head_logits
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.practice import Practice
from steersman.agents.learned.served import MASKED
from steersman.agents.parallel import Task, spread
from steersman.env.cluster import Cluster
from steersman.env.counterfactual import added_costs
from steersman.env.memory import Memory
from steersman.env.vector import ClusterBatch
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Observation

SPARE_SLOTS = 64
"""Room for requests in flight beyond what practice needed, in the futures that are played."""
PARTS = 2
"""Of a round, each practised in lockstep and in one process."""
MOST_FUTURE = 0.45
"""Share of an episode, at its end, that nothing is asked about, at most."""
LEAST_COST = 0.1
"""Keeps the weight of states where hardly anything costs anything finite."""


@dataclass
class States:
    """Observations padded to the same number of replicas, and the added cost of every action."""

    replicas: Tensor
    """(k, n, len(REPLICA_FEATURES))"""
    request: Tensor
    pool: Tensor
    mask: Tensor
    """(k, n)"""
    asked: Tensor
    """(k, n): which actions were asked about; at least two, all allowed by the mask."""
    added: Tensor
    """(k, n): added cost of each, over the mean of those asked about; 0 elsewhere."""
    weight: Tensor
    """(k,): one over a request's cost on that cluster, so that busy ones do not drown the rest."""

    def __len__(self) -> int:
        return len(self.mask)

    @classmethod
    def join(cls, parts: list[States]) -> States:
        """All states of several collections."""
        names = ("replicas", "request", "pool", "mask", "asked", "added", "weight")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def collect(
    practice: Practice,
    network: RoutingNetwork,
    settings: CounterfactualSettings,
    rng: np.random.Generator,
    *,
    jobs: int = 1,
) -> States:
    """Practise on new clusters with the policy as it is, and ask about a share of the states.

    Args:
        jobs: processes; the states are the same whatever their number.
    """
    parts = min(PARTS, settings.clusters)
    sizes = [settings.clusters // parts + (i < settings.clusters % parts) for i in range(parts)]

    def task(size: int, own: np.random.Generator) -> Task[list[NDArray[Any]]]:
        return lambda _: _collect(practice, network, settings, size, own)

    tasks = [task(size, own) for size, own in zip(sizes, rng.spawn(parts), strict=True)]
    arrays = spread(tasks, jobs, lambda _: None)
    return States.join([States(*(torch.from_numpy(a) for a in part)) for part in arrays])


def _collect(
    practice: Practice,
    network: RoutingNetwork,
    settings: CounterfactualSettings,
    size: int,
    rng: np.random.Generator,
) -> list[NDArray[Any]]:
    """The arrays of `States` of so many clusters in lockstep."""
    torch.set_num_threads(1)  # a fork has none of the threads that this process may have had
    clusters = [practice.draw(rng) for _ in range(size)]
    starts = [cluster.memory.copy() for cluster in clusters]
    walks = [_Walk(cluster, settings, rng) for cluster in clusters]
    batch = ClusterBatch(clusters, most_replicas=practice.most_replicas)
    while ((rows := batch.next_requests()) >= 0).any():
        seen = batch.observe()
        scores = head_logits(network, seen).mean(axis=1)
        choices = np.zeros(len(rows), dtype=np.int64)
        for i in np.flatnonzero(rows >= 0).tolist():
            choices[i] = walks[i].step(int(rows[i]), scores[i], seen, i)
        batch.dispatch(choices, seen)
    asked = [walk.ask(start, settings) for walk, start in zip(walks, starts, strict=True)]
    return [np.concatenate(arrays) for arrays in zip(*asked, strict=True)]


class _Walk:
    """One cluster's way through an episode: what it chose, and which states to ask about."""

    def __init__(
        self, cluster: Cluster, settings: CounterfactualSettings, rng: np.random.Generator
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._actions = settings.actions
        self._random_share = float(rng.choice(settings.random_shares))
        rows = len(cluster.trace)
        caches = bool(cluster.memory.cluster["prefix_cache"][0]) and cluster.trace.block_tokens > 0
        self._horizon_s = settings.reuse_horizon_s if caches else settings.horizon_s
        first = int(settings.settling * rows)
        # Every question needs a future as long as the horizon, as far as the episode has one.
        share = min(self._horizon_s / max(float(cluster.trace.arrival_s[-1]), 1e-9), MOST_FUTURE)
        self._last = max(int((1.0 - share) * rows) - first, 1)
        self._stride = max(self._last // settings.states, 1)
        # Counts up to the next state to ask about.
        self._count = int(rng.integers(self._stride)) - first
        self._choices = np.full(len(cluster.trace), -1, dtype=np.int64)
        self._rows: list[int] = []
        self._seen: list[tuple[NDArray[Any], ...]] = []

    def step(self, row: int, scores: NDArray[np.float32], seen: Observation, index: int) -> int:
        """The replica to choose, now and then a random one; remembers the state if its turn has come."""
        mask = seen.mask[index]
        self._count += 1
        if 0 <= self._count <= self._last and self._count % self._stride == 0 and mask.sum() > 1:
            self._rows.append(row)
            self._seen.append(
                (
                    seen.replicas[index],
                    seen.request[index],
                    seen.pool[index],
                    mask,
                    self._worth_asking(scores, mask),
                )
            )
        choice = int(scores.argmax())
        if self._rng.random() < self._random_share:
            choice = int(self._rng.choice(np.flatnonzero(mask)))
        self._choices[row] = choice
        return choice

    def _worth_asking(self, scores: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The policy's favourites, among which it must learn to tell, and one of the others."""
        allowed = np.flatnonzero(mask)
        ordered = allowed[np.argsort(-scores[allowed], kind="stable")]
        asked = np.zeros(len(mask), dtype=np.bool_)
        asked[ordered[: self._actions - 1]] = True
        others = ordered[self._actions - 1 :]
        if len(others):
            asked[self._rng.choice(others)] = True
        return asked

    def ask(self, start: Memory, settings: CounterfactualSettings) -> tuple[NDArray[Any], ...]:
        """The arrays of `States`. Play the recorded futures; ends the cluster's own run first."""
        cluster = self._cluster
        cluster.finish()  # writes down who arrived when
        start.grow(len(cluster.memory.sequences) + SPARE_SLOTS)
        if not self._seen:
            raise ConfigError(
                "practice: an episode had no state to ask about; give it more requests "
                "(practice.episode_requests), and pools of two replicas or more"
            )
        replicas, request, pool, mask, asked = (np.stack(part) for part in zip(*self._seen, strict=True))
        n = len(cluster.replicas)
        costs = np.zeros(mask.shape)
        costs[:, :n] = added_costs(
            start,
            self._choices,
            cluster.table.output_p50,
            np.array(self._rows, dtype=np.int64),
            wanted=asked[:, :n],
            arrival_s=cluster.memory.outcomes["arrival_s"],
            parents=cluster.trace.parent,
            horizon_s=self._horizon_s,
        )
        # Where the replay ended early nothing is known.
        known = np.isfinite(np.where(asked, costs, 0.0)).all(axis=1)
        costs, asked = np.where(asked, costs, 0.0)[known], asked[known]
        # A single answer is mostly chance: about the mean, its ends cut off evenly, it stays fair.
        added = costs - costs.sum(axis=1, keepdims=True) / asked.sum(axis=1, keepdims=True)
        added = np.clip(added, -settings.most_added, settings.most_added) * asked
        usual = cluster.cost_accrued / len(self._choices)
        weight = np.full(len(added), 1.0 / (LEAST_COST + usual), dtype=np.float32)
        kept = (replicas[known], request[known], pool[known], mask[known], asked)
        return *kept, added.astype(np.float32), weight


def improve(
    network: RoutingNetwork,
    states: States,
    settings: CounterfactualSettings,
    generator: torch.Generator,
    *,
    epochs: int,
) -> float:
    """Minimise the expected added cost on all states; returns the mean over the last pass.

    The network ends at the mean of its weights over the last pass (Izmailov et al. 2018): a greedy
    choice between near equals swings with every step, and a policy that swings is worse than the mean.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, eps=1e-5)
    heads = network.head_out.shape[0]
    # Each head learns from its own share of the states, so that they differ where little is known.
    lesson = torch.rand(len(states), heads, generator=generator) < settings.head_share
    batches = _batches(states, settings.minibatch, generator)
    steps = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    losses: list[float] = []
    average = AveragedModel(network)
    for epoch in range(epochs):
        losses.clear()
        for rows, n in _batches(states, settings.minibatch, generator):
            mask, asked = states.mask[rows, :n], states.asked[rows, :n]
            logits = network(states.replicas[rows, :n], states.request[rows], states.pool[rows], mask)
            chance = torch.softmax(torch.where(asked.unsqueeze(1), logits, MASKED), dim=-1)
            expected = (chance * states.added[rows, :n].unsqueeze(1)).sum(dim=-1)
            loss = (expected * lesson[rows] * states.weight[rows].unsqueeze(-1)).sum(dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if epoch == epochs - 1:
                average.update_parameters(network)
            losses.append(loss.item() / (heads * settings.head_share))
    network.load_state_dict(average.module.state_dict())
    return float(np.mean(losses))


def _batches(states: States, size: int, generator: torch.Generator) -> list[tuple[Tensor, int]]:
    """All states once, in random order: rows, and how many replicas the largest pool among them has.

    Pools of like size go together, so that little time is spent on padding.
    """
    largest = (states.mask * torch.arange(1, states.mask.shape[1] + 1)).amax(dim=1)
    batches: list[tuple[Tensor, int]] = []
    lower = 0
    for upper in (8, 16, states.mask.shape[1]):
        rows = torch.nonzero((largest > lower) & (largest <= upper))[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        batches += [(part, min(upper, states.mask.shape[1])) for part in torch.split(rows, size)]
        lower = max(lower, upper)
    order = torch.randperm(len(batches), generator=generator)
    return [batches[i] for i in order if len(batches[i][0])]
