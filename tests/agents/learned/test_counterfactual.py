from __future__ import annotations

import numpy as np
import pytest
import torch

from steersman.agents.learned.config import CounterfactualSettings, NetworkSettings
from steersman.agents.learned.counterfactual import States, collect, improve
from steersman.agents.learned.network import RoutingNetwork
from tests.agents.learned.scenes import make_practice

SETTINGS = CounterfactualSettings(clusters=4, states=12, minibatch=32)


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    return collect(make_practice(), network, SETTINGS, np.random.default_rng(0))


def test_states_are_what_the_policy_met(states: States) -> None:
    assert len(states) >= 4 * (40 // 3)
    width = make_practice().most_replicas
    assert states.replicas.shape[1] == width
    assert bool((states.regret >= 0).all())
    assert bool((states.regret[~states.mask] == 0).all())
    cheapest = torch.where(states.mask, states.regret, torch.inf).amin(dim=1)
    assert bool((cheapest == 0).all())
    assert float(states.regret.max()) <= SETTINGS.most_regret
    assert bool((states.weight > 0).all())


def test_the_same_seed_collects_the_same(states: States) -> None:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    again = collect(make_practice(), network, SETTINGS, np.random.default_rng(0))
    torch.testing.assert_close(again.regret, states.regret, rtol=0.0, atol=0.0)


def test_processes_collect_what_one_collects(states: States) -> None:
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    again = collect(make_practice(), network, SETTINGS, np.random.default_rng(0), jobs=2)
    for name, tensor in vars(states).items():
        torch.testing.assert_close(getattr(again, name), tensor, rtol=0.0, atol=0.0)


def test_improvement_lowers_the_regret(states: States) -> None:
    torch.manual_seed(1)
    network = RoutingNetwork(NetworkSettings())
    network.fit_compression(states.replicas, states.request, states.pool, states.mask)

    def regret() -> float:
        with torch.no_grad():
            logits = network(states.replicas, states.request, states.pool, states.mask)
        choice = logits.mean(dim=1).argmax(dim=1, keepdim=True)
        return float((states.regret.gather(1, choice).squeeze(1) * states.weight).mean())

    before = regret()
    improve(network, states, SETTINGS, torch.Generator().manual_seed(0), epochs=40)
    assert regret() < 0.8 * before


def test_heads_learn_different_things(states: States) -> None:
    torch.manual_seed(1)
    network = RoutingNetwork(NetworkSettings())
    improve(network, states, SETTINGS, torch.Generator().manual_seed(0), epochs=3)
    with torch.no_grad():
        logits = network(states.replicas, states.request, states.pool, states.mask)
    spread = logits.std(dim=1)[states.mask]
    assert float(spread.mean()) > 1e-3
