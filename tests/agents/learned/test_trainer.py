from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steersman.agents.learned.check import Checker
from steersman.agents.learned.export import export_policy
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.served import KIND, POLICY_FEATURES, LearnedPolicy
from steersman.agents.learned.trainer import PolicyTrainer, TrainedPolicy
from steersman.predictors.features import REQUEST_INDEX
from steersman.predictors.length import FallbackLength
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Observation
from tests.agents.learned.scenes import ground, scenario, small_settings


class Ticks:
    """A clock that moves by a fixed step whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def run(
    *,
    ppo_share: float,
    clock: Callable[[], float],
    checkpoint: Path | None = None,
    resume: bool = False,
    **changes: object,
) -> TrainedPolicy:
    return PolicyTrainer(
        [ground()],
        FallbackLength(),
        small_settings(ppo_share=ppo_share, **changes),
        seed=0,
        checkpoint=checkpoint,
        resume=resume,
        clock=clock,
    ).train()


@pytest.mark.parametrize("ppo_share", [0.0, 0.5, 1.0])
def test_trains_within_its_budget_and_never_ends_worse_than_it_began(ppo_share: float) -> None:
    trained = run(ppo_share=ppo_share, clock=Ticks(0.02))
    assert trained.check_ratio <= 1.0
    assert trained.states > 0
    assert (trained.decisions > 0) == (ppo_share > 0)
    assert ("counterfactual_loss" in trained.curves) == (ppo_share < 1)
    ratios = [value for _, value in trained.curves["check_ratio"]]
    assert trained.check_ratio == min(1.0, *ratios)


def test_what_was_trained_can_be_served() -> None:
    trained = run(ppo_share=0.0, clock=Ticks(0.1))
    data = export_policy(
        trained.network, trained.ranges, trained.pool_range, trained.parity, version="t"
    )
    model = OnnxModel.parse(data, kind=KIND, features=POLICY_FEATURES, source="trained")
    served = LearnedPolicy(model, np.random.default_rng(0))
    # A trace of token counts says nothing of the text, and little of the day: traffic will.
    seen = Observation(
        *(
            part[0]
            for part in (
                trained.parity.replicas,
                trained.parity.request,
                trained.parity.pool,
                trained.parity.mask,
            )
        )
    )
    before = served.head_scores(seen)
    for name, value in {"prefix_blocks": 300.0, "question_type": 2.0, "hour_cos": -1.0}.items():
        seen.request[REQUEST_INDEX[name]] = value
    assert served.ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.0) == 0.0
    np.testing.assert_allclose(served.head_scores(seen), before, rtol=1e-4, atol=1e-4)


def test_evolution_comes_first_and_what_it_finds_is_kept_where_it_helps() -> None:
    evolution = {**small_settings().evolution.model_dump(), "generations": 3}
    trained = run(
        ppo_share=0.0, clock=Ticks(0.03), budget_s=2.0, evolution=evolution, evolution_share=0.5
    )
    assert [step for step, _ in trained.curves["evolution_ratio"]] == [1, 2, 3]
    assert trained.curves["check_ratio"][0][0] == 0
    assert bool(trained.network.coefficients.any()) == (trained.check_ratio < 1.0)


def test_an_evolution_is_resumed_without_playing_it_again(tmp_path: Path) -> None:
    file = tmp_path / "policy.checkpoint"
    evolution = {**small_settings().evolution.model_dump(), "generations": 2}

    def again(budget_s: float, *, resume: bool) -> TrainedPolicy:
        return run(
            ppo_share=0.0,
            clock=Ticks(0.05),
            checkpoint=file,
            resume=resume,
            budget_s=budget_s,
            evolution=evolution,
            evolution_share=1.0,
        )

    again(1.0, resume=False)
    resumed = again(2.0, resume=True)
    assert [step for step, _ in resumed.curves["evolution_ratio"]] == [1, 2]


def test_resumes_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "policy.checkpoint"
    first = run(ppo_share=0.5, clock=Ticks(0.02), checkpoint=file)
    resumed = run(ppo_share=0.5, clock=Ticks(0.02), checkpoint=file, resume=True, budget_s=3.0)
    assert resumed.states > first.states
    assert resumed.decisions > first.decisions
    assert resumed.check_ratio <= first.check_ratio
    assert (
        resumed.curves["check_ratio"][: len(first.curves["check_ratio"])] == first.curves["check_ratio"]
    )


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.checkpoint"
    run(ppo_share=0.0, clock=Ticks(0.5), checkpoint=file)
    with pytest.raises(ArtifactError, match="other settings"):
        run(ppo_share=0.0, clock=Ticks(0.5), checkpoint=file, resume=True, network={"width": 12})


def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.checkpoint"
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ArtifactError, match="not a usable checkpoint") as caught:
        run(ppo_share=0.0, clock=Ticks(0.5), checkpoint=file, resume=True)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("trapped",))

    file = tmp_path / "policy.checkpoint"
    torch.save({"format": 1, "settings": Trap()}, file)
    with pytest.raises(ArtifactError, match="not a usable checkpoint"):
        run(ppo_share=0.0, clock=Ticks(0.5), checkpoint=file, resume=True)


def test_an_untrained_network_costs_what_marginal_cost_costs() -> None:
    settings = small_settings(network={"width": 8, "initial_residual": 0.0})
    checker = Checker([ground()], FallbackLength(), settings.check)
    check = checker.check(RoutingNetwork(settings.network))
    np.testing.assert_allclose(check.by_run, 1.0, rtol=1e-9)


def test_a_fixed_number_of_rounds_makes_the_same_policy_however_long_it_takes() -> None:
    counterfactual = {**small_settings().counterfactual.model_dump(), "rounds": 2}
    one, other = (
        run(ppo_share=0.0, clock=Ticks(step), budget_s=1e6, counterfactual=counterfactual)
        for step in (0.01, 3.0)
    )
    for name, tensor in one.network.state_dict().items():
        assert torch.equal(tensor, other.network.state_dict()[name])
    assert one.states == other.states


def test_one_policy_for_several_scenarios_is_checked_on_each() -> None:
    other = replace(
        ground(), scenario=replace(scenario(), name="other", replicas=scenario().replicas[::-1])
    )
    settings = small_settings(ppo_share=0.0)
    trained = PolicyTrainer(
        [ground(), other], FallbackLength(), settings, seed=0, clock=Ticks(0.1)
    ).train()
    by_ground = [
        [value for _, value in trained.curves[f"check_ratio.{name}"]] for name in ("tiny", "other")
    ]
    together = [value for _, value in trained.curves["check_ratio"]]
    np.testing.assert_allclose(np.sqrt(np.prod(by_ground, axis=0)), together)


def test_what_the_search_is_on_counts_as_seen() -> None:
    def ranges(survey: int) -> tuple[np.ndarray, np.ndarray]:
        evolution = small_settings().evolution.model_copy(update={"generations": 1, "survey": survey})
        trained = run(
            ppo_share=0.0, clock=Ticks(0.01), evolution=evolution.model_dump(), evolution_share=0.5
        )
        return trained.ranges.replica_lower, trained.ranges.replica_upper

    (low, high), (lower, higher) = ranges(0), ranges(8)
    assert (lower <= low).all()
    assert (high <= higher).all()
    assert (lower < low).any() or (high < higher).any()
