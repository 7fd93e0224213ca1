"""Settings of the learned policy: its network, the clusters it practises on, and PPO."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from steersman.traces.settings import Settings


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"give the lower bound first, as [{bounds[1]}, {bounds[0]}]")
    return bounds


def _ordered_times(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] < 0.0:
        raise ValueError("give times of at least 0, in seconds")
    return _ordered(bounds)


def _ordered_counts(bounds: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError("give two counts of at least 1, the lower first")
    return bounds


Bounds = Annotated[tuple[float, float], AfterValidator(_ordered)]
Times = Annotated[tuple[float, float], AfterValidator(_ordered_times)]
Counts = Annotated[tuple[int, int], AfterValidator(_ordered_counts)]


class NetworkSettings(Settings):
    """The equivariant network (`network.py`)."""

    width: int = Field(48, ge=4, le=512, description="units of every hidden layer")
    heads: int = Field(3, ge=1, le=16, description="heads of the ensemble; the guard reads their spread")
    temperature: float = Field(
        0.1, gt=0, description="marginal-cost gap, in units of J, that counts as clear"
    )
    sharpness: float = Field(
        4.0, gt=0, description="logits per unit of log1p(gap / temperature) against dearer replicas"
    )
    residual_limit: float = Field(
        6.0, gt=0, description="bound on how far a head may move a logit away from marginal cost"
    )
    initial_residual: float = Field(
        0.01, ge=0, description="standard deviation of the heads' last layer before training"
    )


Load = Annotated[Bounds, Field(description="arrival rate over saturation, drawn uniformly")]
EpisodeRequests = Annotated[
    int, Field(ge=20, description="decisions in one episode of a cluster, at least")
]
EpisodeTime = Annotated[
    float, Field(ge=0, description="length of an episode, at least: a pool fills before it is busy")
]
ReuseEpisodeTime = Annotated[
    float, Field(ge=0, description="the same where prompts share prefixes: caches fill more slowly")
]
BusyStretch = Annotated[
    float,
    Field(
        ge=1,
        description="factor on an episode's length at loads from 80 % on: queues grow for minutes there",
    ),
]
MostRequests = Annotated[
    int, Field(ge=20, description="decisions in one episode at most, whatever its length")
]


class PracticeSettings(Settings):
    """The random clusters a policy is trained on (`practice.py`)."""

    replicas: Counts = Field((2, 32), description="replicas of a cluster, drawn log-uniformly")
    profiles: tuple[str, ...] = Field(
        (), description="hardware profiles to mix; empty: those of the scenario and its model's others"
    )
    load: Load = (0.4, 1.5)
    scenario_load: dict[str, Bounds] = Field(
        {}, description="other bounds of it, by scenario, for those whose saturation says little"
    )
    scrape_interval_s: Bounds = Field(
        (0.1, 2.0), description="age of the engines' metrics, drawn log-uniformly"
    )
    episode_requests: EpisodeRequests = 800
    episode_s: EpisodeTime = 90.0
    reuse_episode_s: ReuseEpisodeTime = 150.0
    busy_stretch: BusyStretch = 1.0
    most_requests: MostRequests = 8000
    scenario_share: float = Field(
        0.5, ge=0, le=1, description="share of clusters that are the scenario's own replicas"
    )
    tight_share: float = Field(
        0.25, ge=0, le=1, description="share of the others whose engines run few sequences at once"
    )
    lean_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="share of the others whose engines have little KV memory, if prompts share prefixes",
    )


class EarlyPracticeSettings(PracticeSettings):
    """Of the search's early generations: short episodes."""

    load: Load = (0.6, 1.25)
    episode_requests: EpisodeRequests = 1000
    episode_s: EpisodeTime = 30.0
    reuse_episode_s: ReuseEpisodeTime = 40.0
    most_requests: MostRequests = 2000


class WarmPracticeSettings(PracticeSettings):
    """Of the search's later generations: what is played after the warm-up."""

    load: Load = (0.5, 1.25)
    episode_requests: EpisodeRequests = 1000
    episode_s: EpisodeTime = 45.0
    reuse_episode_s: ReuseEpisodeTime = 45.0
    busy_stretch: BusyStretch = 2.0
    most_requests: MostRequests = 7000


class PPOSettings(Settings):
    """Proximal policy optimisation (Schulman et al. 2017) through stable-baselines3."""

    environments: int = Field(32, ge=2, le=4096, description="clusters that run in lockstep")
    steps: int = Field(64, ge=8, description="decisions per cluster between two updates")
    epochs: int = Field(2, ge=1, description="passes over each batch of experience")
    minibatch: int = Field(1024, ge=16, description="decisions per gradient step")
    learning_rate: float = Field(
        1e-3, gt=0, description="Adam's step, falling to a tenth of it at the end"
    )
    discount_time_s: float = Field(
        10.0, gt=0, description="time constant of the discount: a cost this far ahead counts 1/e"
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="bias against variance of the advantages")
    clip: float = Field(0.2, gt=0, lt=1, description="bound on the change of a probability ratio")
    entropy: float = Field(0.001, ge=0, description="weight of the entropy bonus")
    value_weight: float = Field(0.5, ge=0, description="weight of the value loss")
    target_kl: float = Field(0.03, gt=0, description="an update stops early beyond this divergence")
    critic_warmup: int = Field(
        3, ge=0, description="updates at the start that fit the value alone and leave the policy be"
    )
    check_updates: int = Field(10, ge=1, description="updates between two checks")


class CounterfactualSettings(Settings):
    """All-action improvement on what every choice would have cost (`counterfactual.py`)."""

    rounds: int | None = Field(
        None, ge=1, description="rounds at most; null: as many as the budget has time for"
    )
    clusters: int = Field(16, ge=1, le=1024, description="clusters practised on in a round")
    states: int = Field(600, ge=1, description="decisions of each cluster that are asked about")
    actions: int = Field(
        4, ge=2, description="replicas asked about: the policy's favourites and one of the others"
    )
    settling: float = Field(
        0.35, ge=0, lt=1, description="share of an episode, from its start, that is not asked about"
    )
    horizon_s: float = Field(
        40.0, gt=0, description="later arrivals that are played after such a decision, in seconds"
    )
    reuse_horizon_s: float = Field(
        60.0, gt=0, description="the same where engines cache prefixes, whose loss is felt late"
    )
    random_shares: tuple[float, ...] = Field(
        (0.0, 0.05, 0.15), min_length=1, description="shares of random actions, one drawn per cluster"
    )
    epochs: int = Field(1, ge=1, description="passes over all states known after each round")
    last_epochs: int = Field(1, ge=1, description="passes over all states at the end")
    minibatch: int = Field(1024, ge=16, description="states per gradient step")
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step at the start of each round")
    head_share: float = Field(
        0.7, gt=0, le=1, description="share of the states that each head of the ensemble learns from"
    )
    most_added: float = Field(
        3.0,
        gt=0,
        description="cap on how much more or less than the mean a choice counts, in units of J",
    )
    kept_rounds: int = Field(3, ge=1, description="latest rounds whose states are learned from")
    check_rounds: int = Field(3, ge=1, description="rounds between two checks")


class EarlySettings(Settings):
    """Generations that come first, on short episodes of clusters that start empty: where all that takes
    minutes to show is not seen, but much is found at little cost."""

    generations: int = Field(0, ge=0, description="how many, of all; 0: none")
    spread: float = Field(
        0.15, gt=0, description="standard deviation of the first candidates' coefficients"
    )
    practice: EarlyPracticeSettings = Field(
        default_factory=EarlyPracticeSettings, description="the clusters that are played"
    )


class EvolutionSettings(Settings):
    """Evolution of the weights of the marginal cost's terms on J (`evolution.py`)."""

    start: Literal["shipped", "marginal-cost"] = Field(
        "shipped",
        description="weights that it begins at: the shipped policy's, or the marginal cost's own",
    )
    generations: int | None = Field(
        None,
        ge=0,
        description="at most, early ones too; null: as many as its share of the budget has time for",
    )
    early: EarlySettings = Field(
        default_factory=EarlySettings, description="generations on short episodes, before the others"
    )
    population: int = Field(28, ge=4, description="candidates of a generation")
    spread: float = Field(
        0.12,
        gt=0,
        description="standard deviation of the first candidates' coefficients, after the early ones",
    )
    clusters: int = Field(18, ge=1, description="new clusters that every generation plays")
    most_difference: float = Field(
        0.06, gt=0, description="cap on what one cluster counts for or against a candidate, in log J"
    )
    tail_weight: float = Field(
        0.15, ge=0, description="what the slowest requests' mean TTFT counts, in log J of their log"
    )
    tail_allowance: float = Field(
        1.0, gt=0, description="share of that under marginal cost, below which it counts no more"
    )
    loss_weight: float = Field(
        0.0, ge=0, description="what log J beyond marginal cost's counts, over what it counts anyway"
    )
    averaged: float = Field(
        0.3, gt=0, le=1, description="share of the generations, the last ones, that the result averages"
    )
    settling: float = Field(
        0.2, ge=0, lt=1, description="share of an episode, from its start, that is not counted"
    )
    warmup_s: Times = Field(
        (60.0, 240.0),
        description="time that the search's mean plays a cluster before candidates do, drawn uniformly",
    )
    practice: WarmPracticeSettings = Field(
        default_factory=WarmPracticeSettings, description="the clusters that are played"
    )
    survey: int = Field(
        90,
        ge=0,
        description="more of them that the result plays, for the ranges that the guard compares with",
    )

    @model_validator(mode="after")
    def _some_are_late(self) -> Self:
        if self.generations is not None and 0 < self.generations <= self.early.generations:
            raise ValueError(
                f"early.generations = {self.early.generations} leaves none of "
                f"generations = {self.generations} for longer episodes; give more, or fewer early ones"
            )
        return self


class CheckSettings(Settings):
    """Comparisons with marginal cost on the way, on the tuning part of the trace (`check.py`)."""

    loads: tuple[float, ...] = Field(
        (0.8, 0.95), min_length=1, description="arrival rates over saturation"
    )
    seeds: int = Field(2, ge=1, description="runs per load")
    requests: int = Field(800, ge=20, description="arrivals per run, at least")
    run_s: float = Field(150.0, ge=0, description="length of a run, at least")
    reuse_run_s: float = Field(200.0, ge=0, description="the same where prompts share prefixes")
    settling: float = Field(
        0.4, ge=0, lt=1, description="share of a run's time, from its start, that is not counted"
    )


class PolicySettings(Settings):
    """Training of the routing policy."""

    network: NetworkSettings = Field(default_factory=NetworkSettings, description="its shape")
    practice: PracticeSettings = Field(
        default_factory=PracticeSettings, description="the clusters it practises on"
    )
    evolution: EvolutionSettings = Field(
        default_factory=EvolutionSettings, description="the first learner"
    )
    counterfactual: CounterfactualSettings = Field(
        default_factory=CounterfactualSettings, description="the second learner"
    )
    ppo: PPOSettings = Field(default_factory=PPOSettings, description="the third learner")
    evolution_share: float = Field(
        0.4, ge=0, le=1, description="share of the budget for evolution; it comes first"
    )
    ppo_share: float = Field(
        0.25, ge=0, le=1, description="share of the budget for PPO; 1: PPO alone, 0: none"
    )
    check: CheckSettings = Field(default_factory=CheckSettings, description="picks the checkpoint")
    budget_s: float = Field(600.0, gt=0, description="wall time for the policy, checks included")
