"""Training of the routing policy within a budget of time: practise, check, keep the best.

Three learners take turns on one network. Evolution (`evolution.py`) finds how the terms of the marginal
cost should be weighed; counterfactual rounds (`counterfactual.py`) learn what no weights can say; PPO
(`ppo.py`) goes on from there, against the real returns of its own choices. On the way the policy is
compared with marginal cost on arrivals that training never sees, and the best of all checkpoints is
kept: the untrained one, which is marginal cost, among them. So a training that did not help yields a
policy that is no worse, and says so.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from steersman.agents.fit.fitted import Progress, silent
from steersman.agents.learned.check import Check, Checker
from steersman.agents.learned.checkpoint import load_checkpoint, save_checkpoint
from steersman.agents.learned.config import EvolutionSettings, PolicySettings
from steersman.agents.learned.counterfactual import States, collect, improve
from steersman.agents.learned.evolution import Evolution
from steersman.agents.learned.graph import coefficients_of
from steersman.agents.learned.ground import Ground
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.ppo import PPOLearner
from steersman.agents.learned.practice import Practice
from steersman.agents.learned.shipped import shipped_graph
from steersman.agents.learned.standing import Curves, Standing
from steersman.agents.learned.survey import Seen, survey
from steersman.agents.learned.vec_env import RoutingVecEnv
from steersman.agents.learned.weighing import SHAPE
from steersman.agents.ranges import Ranges
from steersman.predictors.length import LengthPredictor
from steersman.traces.schema import Observation

Clock = Callable[[], float]
PARITY_STATES = 6
SHARES = (0.5, 1.0)
"""Of the learned residual, that are checked: what single answers taught by chance is half gone from half
of it, what they agree on less."""


@dataclass(frozen=True)
class TrainedPolicy:
    """The best network found, and the evidence of the training itself."""

    network: RoutingNetwork
    ranges: Ranges
    pool_range: tuple[NDArray[np.float32], NDArray[np.float32]]
    parity: Observation
    """A few observations of the training, with a batch dimension."""
    check_ratio: float
    """Cost over marginal cost's on the tuning arrivals; selected on these, so a little flattering."""
    curves: Curves
    states: int
    """States asked about in counterfactual rounds."""
    decisions: int
    """Decisions of PPO."""
    seconds: float


class PolicyTrainer:
    """Trains one policy.

    Args:
        grounds: scenarios to train for, one policy for all of them.
        length: predicts output lengths, as the router will.
        settings: of everything; `budget_s` is the wall time.
        seed: of everything random.
        jobs: processes for practice and checks; the result is the same whatever their number.
        checkpoint: file that is written after every round; None for none.
        resume: go on from that file, if it is there.
        progress: told the share of the budget spent.
        clock: seconds.

    Raises:
        ConfigError: see `Practice`.
        ArtifactError: the checkpoint cannot be used.
    """

    def __init__(
        self,
        grounds: Sequence[Ground],
        length: LengthPredictor,
        settings: PolicySettings,
        *,
        seed: int,
        jobs: int = 1,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Progress = silent,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._jobs = jobs
        self._file = checkpoint
        self._tell = progress
        self._clock = clock
        self._began_s = clock()
        self._grounds, self._length = grounds, length
        self._names = [ground.scenario.name for ground in grounds]
        self._practice = Practice(grounds, length, settings.practice)
        self._evolution = Evolution(
            grounds, length, settings.evolution, _start(settings.evolution), seed=seed, jobs=jobs
        )
        self._checker = Checker(grounds, length, settings.check, jobs=jobs)
        torch.manual_seed(seed)
        network = RoutingNetwork(settings.network)
        self._at = Standing(network, copy.deepcopy(network))
        if resume and checkpoint is not None and checkpoint.exists():
            self._at = Standing.of(load_checkpoint(checkpoint, settings, network))

    def train(self) -> TrainedPolicy:
        """Spend the budget; the best checkpoint."""
        torch.set_num_threads(1)
        budget_s = self._settings.budget_s
        before_ppo = 1.0 - self._settings.ppo_share
        self._evolve(budget_s * min(self._settings.evolution_share, before_ppo))
        self._ask(budget_s * before_ppo)
        if self._settings.ppo_share > 0 and self._spent_s() < budget_s:
            self._ppo(budget_s)
        states = States.join(self._at.known)
        network = self._at.best.eval()
        seen = self._survey(states)
        self._tell(1.0, "done")
        return TrainedPolicy(
            network=network,
            # What the network does not read cannot mislead it: the guard need not look at it.
            ranges=seen.ranges.regardless_of(network.unread_request_features()),
            pool_range=seen.pool_range,
            parity=_parity(states, self._seed),
            check_ratio=self._at.best_ratio,
            curves=self._at.curves,
            states=self._at.asked,
            decisions=self._at.decisions,
            seconds=self._spent_s(),
        )

    def _evolve(self, until_s: float) -> None:
        """Generations of the search, after those that were resumed."""
        at, most = self._at, self._settings.evolution.generations
        self._evolution.repeat(at.told)
        last_s = 0.0
        while len(at.told) != most and self._spent_s() + 1.5 * last_s < until_s:
            before_s = self._spent_s()
            generation = self._evolution.step()
            at.told.append(self._evolution.told[-1])
            step = len(at.told)
            at.note("evolution_ratio", step, generation.centre)
            at.note("evolution_ratio.population", step, generation.population)
            at.note("evolution_ratio.tail", step, generation.tail)
            self._say(f"generation {step}: {generation.centre:.3f} of marginal cost")
            self._save()
            last_s = self._spent_s() - before_s
        if at.rounds + at.updates == 0 and self._evolution.result.any():
            at.network.coefficients.copy_(torch.as_tensor(self._evolution.result))
            self._check()
            self._save()

    def _ask(self, until_s: float) -> None:
        """Counterfactual rounds; at least one, from which compression and ranges are known."""
        at, settings = self._at, self._settings.counterfactual
        last_s = 0.0
        while at.rounds == 0 or (
            at.rounds != settings.rounds and self._spent_s() + 1.5 * last_s < until_s
        ):
            before_s = self._spent_s()
            rng = np.random.default_rng([self._seed, at.rounds])
            self._say(f"round {at.rounds + 1}: practise")
            at.known.append(collect(self._practice, at.network, settings, rng, jobs=self._jobs))
            at.asked += len(at.known[-1])
            del at.known[: -settings.kept_rounds]
            if at.rounds == 0:
                first = at.known[0]
                for network in (at.network, at.best):
                    network.fit_compression(first.replicas, first.request, first.pool, first.mask)
            at.rounds += 1
            if until_s > 0.0:
                self._improve(settings.epochs)
            self._save()
            last_s = self._spent_s() - before_s
        if last_s > 0.0 and until_s > 0.0:
            self._improve(settings.last_epochs, last=True)
            self._save()

    def _improve(self, epochs: int, *, last: bool = False) -> None:
        at, settings = self._at, self._settings.counterfactual
        self._say(f"round {at.rounds}: learn")
        generator = torch.Generator().manual_seed(self._seed + at.rounds)
        states = States.join(at.known)
        loss = improve(at.network, states, settings, generator, epochs=epochs)
        at.note("counterfactual_loss", at.rounds, loss)
        if last or at.rounds % settings.check_rounds == 0:
            self._check()

    def _survey(self, states: States) -> Seen:
        """What was seen where states were asked about, and on the clusters of the search, if it went
        anywhere."""
        seen = Seen()
        seen.note(states.replicas[states.mask].numpy(), states.request.numpy(), states.pool.numpy())
        if self._at.told:
            self._say("survey")
            found = self._at.best.coefficients.numpy().astype(np.float64)
            settings, jobs = self._settings.evolution, self._jobs
            seen.join(survey(self._grounds, self._length, settings, found, seed=self._seed, jobs=jobs))
        return seen

    def _ppo(self, until_s: float) -> None:
        at, settings = self._at, self._settings.ppo
        began_s = self._spent_s()
        heads = self._settings.network.heads
        environment = RoutingVecEnv(
            self._practice, settings.environments, heads, self._seed + at.updates
        )
        learner = PPOLearner(
            environment,
            at.best,
            self._settings.network,
            settings,
            seed=self._seed + at.updates,
            left=lambda: max(1.0 - (self._spent_s() - began_s) / (until_s - began_s), 0.0),
        )
        before = at.decisions
        while self._spent_s() < until_s:
            self._say(f"ppo: {at.decisions} decisions")
            for name, value in learner.update().items():
                at.note(f"ppo_{name}", at.updates, value)
            at.updates += 1
            at.decisions = before + learner.decisions
            at.network.load_state_dict(learner.network.state_dict())
            if at.updates % settings.check_updates == 0:
                self._check()
                self._save()
        self._check()
        self._save()

    def _check(self) -> None:
        """Compare with marginal cost, the residual whole and halved; keep the best."""
        at = self._at
        step = at.rounds + at.updates
        for share in SHARES if step else SHARES[-1:]:
            network = at.network.shrunk(share)
            check = self._checker.check(network)
            if check.ratio < at.best_ratio:
                at.best_ratio = check.ratio
                at.best.load_state_dict(network.state_dict())
            self._say(f"{check.ratio:.3f} of marginal cost")
            if share == 1.0:
                at.note("check_ratio", step, check.ratio)
                self._emphasise(step, check)
            else:
                at.note(f"check_ratio.times_{share:g}", step, check.ratio)

    def _emphasise(self, step: int, check: Check) -> None:
        """Practise more where the policy is furthest from better than its baseline."""
        if len(check.by_ground) > 1:
            for name, ratio in zip(self._names, check.by_ground, strict=True):
                self._at.note(f"check_ratio.{name}", step, ratio)
            self._practice.emphasise(check.by_ground)

    def _spent_s(self) -> float:
        return self._at.spent_s + self._clock() - self._began_s

    def _say(self, note: str) -> None:
        self._tell(min(self._spent_s() / self._settings.budget_s, 0.99), note)

    def _save(self) -> None:
        if self._file is not None:
            save_checkpoint(self._file, self._at.checkpoint(self._spent_s()), self._settings)


def _start(settings: EvolutionSettings) -> NDArray[np.float64]:
    """Coefficients that the evolution begins at."""
    if settings.start == "marginal-cost":
        return np.zeros(SHAPE)
    return coefficients_of(onnx.load_model_from_string(shipped_graph()))


def _parity(states: States, seed: int) -> Observation:
    """A few states; in some of them replicas are masked that were not."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(states), min(PARITY_STATES, len(states)), replace=False)
    mask = states.mask.numpy()[rows]
    for row in mask[::2]:
        row[rng.choice(np.flatnonzero(row), row.sum() // 2, replace=False)] = False
    return Observation(
        states.replicas.numpy()[rows], states.request.numpy()[rows], states.pool.numpy()[rows], mask
    )
