from __future__ import annotations

from steersman.agents.evaluate.run import policy_factory
from steersman.agents.evaluate.standard import (
    QUICK_SCENARIOS,
    SCENARIOS,
    SLOW_SCENARIOS,
    clairvoyant,
    evaluate_parts,
    full,
    quick,
    runs_of,
)
from steersman.agents.evaluate.table import Cell
from steersman.env.scenario import load_scenario


def test_claims_have_their_seeds_requests_and_minutes() -> None:
    parts = full()
    assert {part.scenario.name for part in parts} == set(SCENARIOS)
    for part in parts:
        protocol = part.protocol
        assert (protocol.warmup_s, protocol.window_s, protocol.split) == (120.0, 600.0, "evaluation")
        assert protocol.requests == (1500 if part.scenario.name in SLOW_SCENARIOS else 5000)
        assert len(protocol.seeds) >= (20 if max(protocol.loads) >= 0.95 else 5)
    cells = {(part.scenario.name, load) for part in parts for load in part.protocol.loads}
    assert cells == {(name, load) for name in SCENARIOS for load in (0.6, 0.8, 0.95)}


def test_every_standard_scenario_knows_the_saturation_of_every_split() -> None:
    for name in SCENARIOS:
        assert set(load_scenario(name).split_saturation_rps) == {"train", "tune", "evaluation"}


def test_the_quick_and_the_clairvoyant_cells() -> None:
    assert [part.scenario.name for part in quick()] == list(QUICK_SCENARIOS)
    assert runs_of(2, quick()) == 2 * 4 * 2 * 3
    protocol = clairvoyant()[0].protocol
    assert (protocol.requests, len(protocol.seeds)) == (600, 8)
    assert protocol.tail_s > 0


def test_parts_make_one_table() -> None:
    from dataclasses import replace

    from steersman.agents.evaluate.standard import Part

    scenario = replace(load_scenario("tiny"), saturation_rps=10.0)
    base = replace(quick()[0].protocol, requests=40, warmup_s=1.0)
    parts = [
        Part(scenario, replace(base, loads=(0.5,), seeds=(0,))),
        Part(scenario, replace(base, loads=(0.9,), seeds=(0, 1))),
    ]
    table = evaluate_parts({"random": policy_factory("random")}, parts)
    assert table.cells == (Cell("tiny", 0.5), Cell("tiny", 0.9))
    assert len(table.runs) == runs_of(1, parts) == 3
