"""How fast a routing policy practises: rollouts with the network, and counterfactual labels.

::

    python benchmarks/training.py [--quick] [--json FILE]

`rollout_decisions_per_s.B`: B clusters in lockstep (`agents/learned/vec_env.py`), each with its
marginal-cost twin, and the network that samples the actions, as PPO collects its experience; one
thread. `rollout_us.*` divides the time of a decision. `labels_per_s`: states at which the added cost
of some replicas is asked (`env/counterfactual.py`), the replay of the run between them included, and
`labels_per_s.N` on N replicas alone. Clusters are drawn as in training, of the `mixed` scenario.
Seconds are of the processor: on a machine with other work the clock tells of that.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steersman.agents.learned.actor_critic import RoutingActorCritic, observation_space
from steersman.agents.learned.config import CounterfactualSettings, NetworkSettings, PracticeSettings
from steersman.agents.learned.counterfactual import MOST_FUTURE, SPARE_SLOTS
from steersman.agents.learned.ground import grounds_of
from steersman.agents.learned.practice import Practice
from steersman.agents.learned.vec_env import RoutingVecEnv
from steersman.agents.policies import make_policy
from steersman.env.cluster import Cluster
from steersman.env.counterfactual import added_costs
from steersman.env.scenario import load_scenario
from steersman.predictors.length import FallbackLength

SCENARIO = "mixed"
ENVIRONMENTS = (32, 128)
LABELLED_REPLICAS = (4, 8, 16, 32)
Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    decisions = 6_000 if options.quick else 40_000
    for environments in ENVIRONMENTS:
        rows += rollouts(environments, decisions)
    clusters = 4 if options.quick else 24
    rows += labels("", PracticeSettings(), clusters)
    for replicas in LABELLED_REPLICAS:
        same = PracticeSettings(replicas=(replicas, replicas), scenario_share=0.0)
        rows += labels(f".{replicas}", same, max(clusters // 4, 2))
    for each in rows:
        print(f"{each['name']:<40}{each['value']:>12.4g} {each['unit']:<12} {each['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def practice(settings: PracticeSettings) -> Practice:
    """Clusters as they are trained on."""
    return Practice(grounds_of([load_scenario(SCENARIO)]), FallbackLength(), settings)


def rollouts(environments: int, decisions: int) -> Iterator[Row]:
    """Decisions per second, and what they are spent on."""
    network = NetworkSettings()
    ground = practice(PracticeSettings())
    env = RoutingVecEnv(ground, environments, network.heads, seed=0)
    space = observation_space(ground.most_replicas, network.heads)
    policy = RoutingActorCritic(space, env.action_space, lambda _: 0.0, network=network)  # type: ignore[arg-type]
    seen = env.reset()
    spent: dict[str, float] = {"network": 0.0, "environment": 0.0}

    def step() -> None:
        nonlocal seen
        began = time.thread_time()
        with torch.no_grad():
            tensors = {name: torch.from_numpy(values) for name, values in seen.items()}  # type: ignore[union-attr]
            actions = policy(tensors)[0].numpy()
        between = time.thread_time()
        env.step_async(actions)
        seen = env.step_wait()[0]
        spent["network"] += between - began
        spent["environment"] += time.thread_time() - between

    for _ in range(20):
        step()
    spent = dict.fromkeys(spent, 0.0)
    steps = max(decisions // environments, 1)
    for _ in range(steps):
        step()
    elapsed_s = sum(spent.values())
    made = steps * environments
    yield row(
        f"rollout_decisions_per_s.{environments}", made / elapsed_s, "decisions/s", f"{made} decisions"
    )
    for part, part_s in spent.items():
        yield row(f"rollout_us.{part}.{environments}", 1e6 * part_s / made, "us", "of a decision")


def labels(name: str, settings: PracticeSettings, clusters: int) -> Iterator[Row]:
    """States per second at which the cost of every choice is asked."""
    ground, rng = practice(settings), np.random.default_rng(0)
    counterfactual = CounterfactualSettings()
    asked, elapsed_s, replicas = 0, 0.0, []
    for index in range(clusters + 1):
        cluster = ground.draw(rng)
        start = cluster.memory.copy()
        choices = played(cluster)
        start.grow(len(cluster.memory.sequences) + SPARE_SLOTS)
        rows, wanted = questions(choices, len(cluster.replicas), counterfactual, rng)
        began = time.thread_time()
        added_costs(
            start,
            choices,
            cluster.table.output_p50,
            rows,
            wanted=wanted,
            arrival_s=cluster.memory.outcomes["arrival_s"],
            parents=cluster.trace.parent,
            horizon_s=counterfactual.horizon_s,
        )
        if index == 0:
            continue  # compiled
        elapsed_s += time.thread_time() - began
        asked += len(rows)
        replicas.append(len(cluster.replicas))
    note = f"{asked} states, {np.mean(replicas):.3g} replicas on average"
    yield row(f"labels_per_s{name}", asked / elapsed_s, "states/s", note)


def played(cluster: Cluster) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Route a cluster by marginal cost, to its end; returns the choices, by row of the trace."""
    policy = make_policy("marginal-cost", seed=0)
    choices = np.full(len(cluster.trace), -1, dtype=np.int64)
    while (index := cluster.next_request()) is not None:
        choices[index] = policy.decide(cluster.observe()).choice
        cluster.dispatch(int(choices[index]))
    cluster.finish()
    return choices


def questions(
    choices: np.ndarray[Any, np.dtype[np.int64]],
    replicas: int,
    settings: CounterfactualSettings,
    rng: np.random.Generator,
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """As many as in training, at states that are settled and have a future: rows, and replicas asked
    about, (rows, replicas)."""
    rows = np.flatnonzero(choices >= 0)
    rows = rows[int(settings.settling * len(rows)) : int((1.0 - MOST_FUTURE) * len(rows))]
    rows = rows[:: max(len(rows) // settings.states, 1)]
    order = rng.random((len(rows), replicas)).argsort(axis=1)
    return rows, order < settings.actions


def row(name: str, value: float, unit: str, note: str) -> Row:
    """One figure."""
    return {"name": name, "value": value, "lo": None, "hi": None, "unit": unit, "note": note}


if __name__ == "__main__":
    main()
