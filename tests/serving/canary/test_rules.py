"""Whole canaries on drawn outcomes, second by second: what passes, what is stopped, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from steersman.agents.evidence import Evidence
from steersman.serving.canary import rules
from steersman.serving.canary.counting import absorb
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.share import share_of
from steersman.serving.canary.split import lot_at
from steersman.serving.canary.state import CanaryState, Phase, read_state
from steersman.serving.canary.tally import CHALLENGER, CHAMPION, E2E, ERRORS, MISSED, TTFT, Tally

BEGAN_S = 1.8e9
RATE = 20
"""Requests per second."""


def settings(**more: Any) -> CanarySettings:
    values: dict[str, Any] = {"hold_s": 200.0, "least_requests": 100} | more
    return CanarySettings(**values)


class World:
    """Draws outcomes: exponential TTFT, E2E twice that; the challenger's times a factor."""

    def __init__(
        self,
        seed: int,
        *,
        slower: float = 1.0,
        errors: float = 0.004,
        more: float = 0.0,
        missed: float = 0.0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.slower, self.errors, self.more = slower, errors, more
        self.missed = missed
        self.hour = 1.0
        """Factor on everybody's latencies."""
        """Share of the challenger's requests beyond the champion's one in a hundred."""

    def second(self, state: CanaryState, options: CanarySettings, now_s: float) -> Tally:
        tally, share = Tally(), share_of(state, options)
        blocky = options.split == "switchback"
        lot = lot_at("salt", now_s, options.block_s, share) if blocky else None
        busy = self.hour * (1.0 + 0.25 * np.sin(now_s / 300.0))
        for drawn in self.rng.random(RATE):
            is_challenger = lot.challenger if lot else drawn < share
            arm = CHALLENGER if is_challenger else CHAMPION
            bad = bool(self.rng.random() < self.errors + self.more * is_challenger)
            tally.judge(arm, ERRORS, bad=bad, lot=lot)
            tally.see(arm, ERRORS, bad=bad)
            missed = bad or bool(self.rng.random() < 0.01 + self.missed * is_challenger)
            tally.judge(arm, MISSED, bad=missed, lot=lot)
            tally.see(arm, MISSED, bad=missed)
            if bad:
                continue
            ttft_s = self.rng.exponential(0.2) * busy * (self.slower if is_challenger else 1.0)
            for guard, seconds in ((TTFT, ttft_s), (E2E, 2.0 * ttft_s)):
                tally.measure(arm, guard, seconds)
                if guard in state.limits_s:
                    tally.judge(arm, guard, bad=seconds > state.limits_s[guard], lot=lot)
        return tally


def run(
    world: World, options: CanarySettings, *, most_s: int = 2000, each: Callable[[], None] | None = None
) -> tuple[CanaryState, int]:
    """Until it ends; the state, and the seconds it took."""
    state = CanaryState()
    rules.start(state, options, "b2", "b1", BEGAN_S)
    for second in range(1, most_s + 1):
        now_s = BEGAN_S + second
        absorb(state, options, world.second(state, options, now_s), now_s)
        rules.advance(state, options, now_s)
        if each is not None:
            each()
        if not state.running:
            return state, second
    return state, most_s


def evidence_of(state: CanaryState) -> Evidence:
    return Evidence.from_json(state.evidence)


def test_a_challenger_that_is_no_different_passes_all_stages_in_their_time() -> None:
    state, seconds = run(World(0), settings())
    assert state.phase is Phase.PROMOTED
    assert seconds == 800
    assert [(t.what, t.share) for t in state.transitions] == [
        ("started", 0.05),
        ("stage", 0.2),
        ("stage", 0.5),
        ("stage", 0.98),
        ("promoted", 1.0),
    ]
    made = evidence_of(state)
    assert (made.kind, made.challenger, made.champion, made.verdict) == (
        "canary",
        "b2",
        "b1",
        "no_worse",
    )
    assert made.figures["p99_ttft_ratio"] == pytest.approx(1.0, abs=0.2)
    assert not state.evidence_left
    assert share_of(state, settings()) == 1.0


def test_hardly_one_that_is_no_different_is_rolled_back() -> None:
    """Twenty canaries, each looked at 240 times or more; the aim is one in twenty at most."""
    options = settings(hold_s=60.0)
    ended = [run(World(seed), options)[0].phase for seed in range(20)]
    assert ended.count(Phase.ROLLED_BACK) <= 1


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"slower": 1.4}, "p99 of"),
        ({"more": 0.02}, "of its requests fail"),
        ({"missed": 0.15}, "fail or miss an objective"),
    ],
)
def test_one_that_is_worse_is_rolled_back_before_it_has_all_traffic(
    world: dict[str, float], said: str
) -> None:
    ended = [run(World(seed, **world), settings(hold_s=300.0))[0] for seed in range(4)]
    for state in ended:
        assert state.phase is Phase.ROLLED_BACK
        last = state.transitions[-1]
        assert said in last.reason
        assert (last.what, last.share) == ("rolled_back", 0.0)
        assert state.stage < 3
        made = evidence_of(state)
        assert (made.verdict, made.reasons) == ("worse", (last.reason,))


def test_one_that_is_much_worse_is_rolled_back_in_the_first_stage() -> None:
    state, seconds = run(World(1, slower=5.0), settings())
    assert (state.phase, state.stage) == (Phase.ROLLED_BACK, 0)
    assert seconds < 60


def test_one_that_misses_most_objectives_is_stopped_within_some_tens_of_its_requests() -> None:
    state, _ = run(World(9, missed=0.4), settings())
    assert (state.phase, state.stage) == (Phase.ROLLED_BACK, 0)
    assert state.figures.seen[CHALLENGER][MISSED][0] < 40


def test_a_state_of_an_earlier_version_goes_on() -> None:
    """It knew nothing of objectives."""
    options, world, state = settings(), World(10, missed=0.4), CanaryState()
    rules.start(state, options, "b2", "b1", BEGAN_S)
    values = json.loads(state.to_json())
    for known in (values["tests"], values["block_tests"]):
        del known[MISSED]
    for arm in (CHALLENGER, CHAMPION):
        del values["figures"]["seen"][arm][MISSED]
    state = read_state(json.dumps(values).encode())
    for second in range(1, 60):
        now_s = BEGAN_S + second
        absorb(state, options, world.second(state, options, now_s), now_s)
        rules.advance(state, options, now_s)
    assert "objective" in state.transitions[-1].reason


def test_what_is_worse_by_little_is_let_pass() -> None:
    """Beyond chance, in the end, but not by as much as matters."""
    state, _ = run(World(2, more=0.002), settings(p99_rise=0.5, error_rise=0.02, hold_s=300.0))
    assert state.phase is Phase.PROMOTED


def test_one_that_is_faster_is_found_better() -> None:
    state, _ = run(World(3, slower=0.6), settings(hold_s=300.0))
    made = evidence_of(state)
    assert made.verdict == "better"
    assert "exceed the champion's p99" in made.reasons[0]


@pytest.mark.parametrize(
    ("control", "fault", "within_s"),
    [
        (0.0, {"slower": 3.0}, 40),
        (0.02, {"slower": 5.0}, 150),
        (0.02, {"missed": 0.4}, 5),
        (0.02, {"more": 0.2}, 5),
    ],
)
def test_a_fault_that_shows_only_under_all_traffic_is_found_there(
    control: float, fault: dict[str, float], within_s: int
) -> None:
    world = World(4)
    options, state = settings(control=control), CanaryState()
    rules.start(state, options, "b2", "b1", BEGAN_S)
    for second in range(1, 801):
        now_s = BEGAN_S + second
        if state.stage == 3:
            vars(world).update(fault)
        absorb(state, options, world.second(state, options, now_s), now_s)
        rules.advance(state, options, now_s)
        if not state.running:
            break
    assert (state.phase, state.stage) == (Phase.ROLLED_BACK, 3)
    assert second - 600 < within_s


def test_a_busier_hour_is_no_fault_where_there_is_a_control() -> None:
    for control, phase in ((0.02, Phase.PROMOTED), (0.0, Phase.ROLLED_BACK)):
        world, options, state = World(11), settings(control=control), CanaryState()
        rules.start(state, options, "b2", "b1", BEGAN_S)
        for second in range(1, 801):
            world.hour = 2.5 if state.stage == 3 else 1.0
            now_s = BEGAN_S + second
            absorb(state, options, world.second(state, options, now_s), now_s)
            rules.advance(state, options, now_s)
        assert state.phase is phase


def test_a_stage_waits_for_enough_requests() -> None:
    state, _ = run(World(5), settings(hold_s=10.0, least_requests=400), most_s=600)
    first, second = state.transitions[:2]
    assert second.at_unix_s - first.at_unix_s > 300.0


def test_a_switchback_finds_what_is_worse_and_lets_the_rest_pass() -> None:
    options = settings(split="switchback", shares=(0.5, 1.0), block_s=20.0, washout_s=0.0, hold_s=1500.0)
    state, _ = run(World(6), options, most_s=3100)
    assert state.phase is Phase.PROMOTED
    state, seconds = run(World(7, slower=3.0), options, most_s=1600)
    assert state.phase is Phase.ROLLED_BACK
    assert seconds < 1500


def test_the_state_goes_through_json_at_every_moment() -> None:
    """As it does between two steps of any router."""
    options, state = settings(), CanaryState()
    plain, world, twin = CanaryState(), World(8, slower=2.0), World(8, slower=2.0)
    rules.start(state, options, "b2", "b1", BEGAN_S)
    rules.start(plain, options, "b2", "b1", BEGAN_S)
    for second in range(1, 60):
        now_s = BEGAN_S + second
        state = read_state(state.to_json())
        for one, drawn in ((state, world), (plain, twin)):
            absorb(one, options, drawn.second(one, options, now_s), now_s)
            rules.advance(one, options, now_s)
    assert state.to_json() == plain.to_json()
    assert len(state.to_json()) < 60_000


def test_by_hand() -> None:
    options, state = settings(), CanaryState()
    rules.start(state, options, "b2", "b1", BEGAN_S)
    rules.promote_by_hand(state, options, "me", "it is urgent", BEGAN_S + 5)
    assert share_of(state, options) == 1.0
    made = evidence_of(state)
    assert (made.kind, made.by, made.reasons[0]) == ("override", "me", "it is urgent")
    rules.finish(state, options, "b2 is champion", BEGAN_S + 9)
    assert share_of(state, options) == 0.0
    assert [t.what for t in state.transitions] == ["started", "promoted", "done"]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"phase": "flying"}', b'{"stage": "x"}'])
def test_a_damaged_state_is_told(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_state(data)


def test_keys_of_a_later_version_are_ignored() -> None:
    values = json.loads(CanaryState().to_json()) | {"colour": "blue"}
    assert read_state(json.dumps(values).encode()) == CanaryState()
