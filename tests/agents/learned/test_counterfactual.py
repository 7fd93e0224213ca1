from __future__ import annotations

import numpy as np
import pytest
import torch

from steersman.agents.learned.config import CounterfactualSettings, NetworkSettings
from steersman.agents.learned.counterfactual import States, collect, improve
from steersman.agents.learned.network import RoutingNetwork
from steersman.traces.errors import ConfigError
from tests.agents.learned.scenes import SMALL, make_practice

SETTINGS = CounterfactualSettings(clusters=4, states=12, minibatch=32)
SEED = 1


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    return collect(make_practice(), network, SETTINGS, np.random.default_rng(SEED))


def test_states_are_what_the_policy_met(states: States) -> None:
    assert len(states) >= 4 * 8
    width = make_practice().most_replicas
    assert states.replicas.shape[1] == width
    assert not bool((states.asked & ~states.mask).any())
    candidates = states.mask.sum(dim=1)
    asked = torch.minimum(candidates, torch.tensor(SETTINGS.actions))
    torch.testing.assert_close(states.asked.sum(dim=1), asked)
    assert bool((candidates >= 2).all())
    assert bool((states.added[~states.asked] == 0).all())
    assert float(states.added.abs().max()) <= SETTINGS.most_added
    # Cut off evenly, they still mostly sum to nothing.
    assert abs(float(states.added.sum(dim=1).median())) < 1e-4
    assert bool((states.weight > 0).all())


def test_the_same_seed_collects_the_same(states: States) -> None:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    again = collect(make_practice(), network, SETTINGS, np.random.default_rng(SEED))
    torch.testing.assert_close(again.added, states.added, rtol=0.0, atol=0.0)


def test_processes_collect_what_one_collects(states: States) -> None:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    again = collect(make_practice(), network, SETTINGS, np.random.default_rng(SEED), jobs=2)
    for name, tensor in vars(states).items():
        torch.testing.assert_close(getattr(again, name), tensor, rtol=0.0, atol=0.0)


def test_improvement_lowers_what_the_choices_add(states: States) -> None:
    torch.manual_seed(1)
    network = RoutingNetwork(NetworkSettings())
    network.fit_compression(states.replicas, states.request, states.pool, states.mask)

    def added() -> float:
        with torch.no_grad():
            logits = network(states.replicas, states.request, states.pool, states.asked)
        choice = logits.mean(dim=1).argmax(dim=1, keepdim=True)
        return float((states.added.gather(1, choice).squeeze(1) * states.weight).mean())

    best = states.added.masked_fill(~states.asked, torch.inf).amin(dim=1) * states.weight
    gap = added() - float(best.mean())
    improve(network, states, SETTINGS, torch.Generator().manual_seed(0), epochs=400)
    assert added() - float(best.mean()) < 0.5 * gap


def test_pools_of_one_replica_teach_nothing_and_say_so() -> None:
    practice = make_practice(SMALL.model_copy(update={"replicas": (1, 1), "scenario_share": 0.0}))
    with pytest.raises(ConfigError, match="pools of two replicas"):
        collect(practice, RoutingNetwork(NetworkSettings()), SETTINGS, np.random.default_rng(SEED))


def test_heads_learn_different_things(states: States) -> None:
    torch.manual_seed(1)
    network = RoutingNetwork(NetworkSettings())
    improve(network, states, SETTINGS, torch.Generator().manual_seed(0), epochs=3)
    with torch.no_grad():
        logits = network(states.replicas, states.request, states.pool, states.mask)
    spread = logits.std(dim=1)[states.mask]
    assert float(spread.mean()) > 1e-3
