"""The trained models that serve, and the loop that watches for better ones.

A bundle is loaded whole and checked before it serves; a bundle that is refused changes nothing but a
counter and one line in the log. Without any bundle the policy that ships with Steersman decides, and
output lengths come from the tenants' own history; without that too the guard's fallbacks decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steersman.agents.exploration import Explorer
from steersman.agents.guard import Guard, GuardSettings
from steersman.agents.learned.served import KIND as POLICY_KIND
from steersman.agents.learned.served import POLICY_FEATURES, LearnedPolicy
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.policies import make_policy
from steersman.agents.policies.latency import PredictedLatency
from steersman.agents.policy import Policy
from steersman.predictors.bundle import (
    POLICY_FILE,
    Bundle,
    Signature,
    bundle_signature,
    copy_bundle,
    load_bundle,
)
from steersman.predictors.latency import AnalyticLatency, LatencyModel, LatencyPredictor
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.predictors.onnx_model import OnnxModel
from steersman.predictors.width import Widths
from steersman.serving.config import BundleSettings
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.policy_settings import LearnedOptions, PolicySettings
from steersman.serving.selftest import check_policy
from steersman.traces.errors import ArtifactError
from steersman.traces.settings import parse_settings

logger = logging.getLogger("steersman.serving")

LEARNED = "learned"


@dataclass(frozen=True)
class Loaded:
    """A bundle, checked and ready."""

    version: str
    length: LengthModel | None
    latency: LatencyModel | None
    policy: OnnxModel | None


class ServedModels:
    """Who decides: a policy for each pool, and the predictors of lengths and latencies.

    Raises:
        ConfigError: an unknown policy, or a wrong option of it.
    """

    def __init__(
        self, settings: PolicySettings, guard: GuardSettings, metrics: RouterMetrics, clock: Clock
    ) -> None:
        self._settings = settings
        self._guard_settings = guard
        self._metrics = metrics
        self._clock = clock
        self._rng = np.random.default_rng(settings.seed)
        self._shipped: Loaded | None = None
        self._configure(settings)
        self._policies: dict[str, Policy] = {}
        self._widths: dict[str, Widths] = {}
        self._loaded: Loaded | None = None
        self.length: LengthPredictor = FallbackLength()
        self.latency: LatencyPredictor = AnalyticLatency()
        # A misspelt name is found at the start, not at the first request.
        self._make()

    def apply(self, settings: PolicySettings, guard: GuardSettings) -> None:
        """From the next decision on these policies decide; each pool's begins anew if they differ.

        Raises:
            ConfigError: an unknown policy, or a wrong option of it.
        """
        if (settings, guard) == (self._settings, self._guard_settings):
            return
        self._settings, self._guard_settings = settings, guard
        self._configure(settings)
        for model in self._policies:
            with contextlib.suppress(KeyError):
                self._metrics.latched.remove(model)
        self._policies.clear()
        self._make()

    @property
    def version(self) -> str:
        """Of the bundle that serves, the shipped one if there is no other; empty without any."""
        loaded = self._loaded or self._shipped
        return loaded.version if loaded else ""

    def policy(self, model: str) -> Policy:
        """The policy of a model's pool; made at its first request."""
        policy = self._policies.get(model)
        if policy is None:
            policy = self._policies[model] = self._make()
            guard = _inner(policy)
            if isinstance(guard, Guard):
                self._metrics.latched.labels(model).set_function(lambda: float(guard.latched))
        return policy

    def guard(self, model: str) -> Guard | None:
        """The guard of a model's pool; None if its policy has none."""
        policy = _inner(self.policy(model))
        return policy if isinstance(policy, Guard) else None

    def widths(self, model: str) -> Widths:
        """What outcomes have taught of p90 of a model's latencies, under the predictor that serves."""
        widths = self._widths.get(model)
        if widths is None:
            widths = self._widths[model] = Widths()
            shown = self._metrics.width
            shown.labels(model, "ttft").set_function(lambda: math.exp(widths.ttft.log))
            shown.labels(model, "ttft_queued").set_function(lambda: math.exp(widths.ttft_queued.log))
            shown.labels(model, "tpot").set_function(lambda: math.exp(widths.tpot.log))
        return widths

    def serve(self, loaded: Loaded) -> None:
        """From the next decision on, these models serve."""
        previous, self._loaded = self._loaded or self._shipped, loaded
        before = self.latency.version
        self.length = loaded.length or FallbackLength()
        self.latency = loaded.latency or AnalyticLatency()
        if self.latency.version != before:
            self._widths.clear()  # of other predictions; what is still on its way teaches those
        for policy in map(_inner, self._policies.values()):
            if isinstance(policy, Guard):
                policy.replace(self._learned())
            elif isinstance(policy, PredictedLatency):
                policy.replace(self.latency)
        if previous is not None:
            self._metrics.bundle_info.remove(previous.version)
        self._metrics.bundle_info.labels(loaded.version).set(1)

    def _make(self) -> Policy:
        settings, guard = self._settings, self._guard_settings
        policy: Policy
        if settings.name == LEARNED:
            policy = Guard.make(self._learned(), guard, seed=self._rng, clock=self._clock)
        else:
            options = settings.options
            policy = make_policy(settings.name, seed=self._rng, options=options, latency=self.latency)
        share = settings.explored
        if share == 0.0:
            return policy
        return Explorer(
            policy,
            self._rng,
            share,
            slow_factor=guard.slow_factor,
            slow_slack_s=guard.slow_slack_s,
        )

    def _configure(self, settings: PolicySettings) -> None:
        """Take over what the settings say of the learned policy."""
        options = None
        if settings.name == LEARNED:
            options = parse_settings(settings.options, LearnedOptions, source="policy.options")
        if not (options and options.shipped):
            self._shipped = None
        elif self._shipped is None:
            self._shipped = _shipped(self._metrics)

    def _learned(self) -> LearnedPolicy | None:
        """The bundle's policy; of a bundle of predictors alone, the shipped one on top of them."""
        for loaded in (self._loaded, self._shipped):
            if loaded is not None and loaded.policy is not None:
                return LearnedPolicy(loaded.policy, self._rng)
        return None


def _inner(policy: Policy) -> Policy:
    return policy.policy if isinstance(policy, Explorer) else policy


def load_models(directory: Path, latency_budget_ms: float = 0.0) -> Loaded:
    """Read and check a bundle; takes a moment, so not on the event loop.

    Args:
        directory: of the bundle.
        latency_budget_ms: most time of its policy for a decision; 0: any.

    Raises:
        ArtifactError: it is missing, corrupt, or not for this version.
    """
    return _checked(load_bundle(directory), latency_budget_ms)


def _shipped(metrics: RouterMetrics) -> Loaded | None:
    """What ships with this version; a damaged installation costs the policy, not the service."""
    try:
        loaded = _checked(load_shipped())
    except ArtifactError as error:
        metrics.bundle_loads.labels("refused").inc()
        logger.warning("the shipped policy is refused: %s; the fallback serves", error)
        return None
    metrics.bundle_info.labels(loaded.version).set(1)
    return loaded


def _checked(bundle: Bundle, latency_budget_ms: float = 0.0) -> Loaded:
    policy = bundle.model(POLICY_FILE, kind=POLICY_KIND, features=POLICY_FEATURES)
    if policy is not None:
        check_policy(policy, latency_budget_ms)
    length, latency = LengthModel.from_bundle(bundle), LatencyModel.from_bundle(bundle)
    return Loaded(bundle.version, length, latency, policy)


IDLE_S = 2.0
"""Pause while no directory is named."""


class BundleWatch:
    """The control loop that loads a bundle when it appears or changes."""

    name = "bundle watch"

    def __init__(self, models: ServedModels, settings: BundleSettings, metrics: RouterMetrics) -> None:
        self._directory = Path(settings.directory)
        self._models = models
        self._settings = settings
        self._metrics = metrics
        self._seen: Signature | None = None
        self._first = True
        self._serves = False
        """Whether a bundle has been loaded since the start."""

    def apply(self, settings: BundleSettings) -> bool:
        """From the next look on; returns whether that should be now."""
        moved = settings.directory != self._settings.directory
        if moved:
            self._directory, self._first = Path(settings.directory), True
        self._settings = settings
        return moved

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Load the bundle if it is another one than at the last look."""
        if not self._settings.directory:
            return IDLE_S
        signature = bundle_signature(self._directory)
        if signature != self._seen or self._first:
            self._seen, self._first = signature, False
            await self._load()
        return self._settings.watch_interval_s or math.inf

    async def _load(self) -> None:
        budget_ms = self._settings.latency_budget_ms
        try:
            loaded = await asyncio.to_thread(load_models, self._directory, budget_ms)
        except ArtifactError as error:
            self._metrics.bundle_loads.labels("refused").inc()
            self._metrics.bundle_ok.set(0.0)
            await self._load_kept()
            serving = self._models.version or "the fallback"
            logger.warning("bundle refused: %s; %s goes on serving", error, serving)
        else:
            self._metrics.bundle_loads.labels("loaded").inc()
            self._metrics.bundle_ok.set(1.0)
            self._models.serve(loaded)
            self._serves = True
            logger.info("bundle %s serves, from %s", loaded.version, self._directory)
            await asyncio.to_thread(self._keep, loaded.version)

    def _keep(self, version: str) -> None:
        """A copy of what serves, for a start at which there is nothing better."""
        if not self._settings.keep_directory:
            return
        try:
            bundle = load_bundle(self._directory)
            if bundle.version == version:
                copy_bundle(bundle, Path(self._settings.keep_directory))
        except ArtifactError as error:
            logger.warning("bundle.keep_directory: %s", error)

    async def _load_kept(self) -> None:
        """Before any bundle has served: what served before the restart, if it was kept."""
        kept = self._settings.keep_directory
        if self._serves or not kept:
            return
        try:
            self._models.serve(await asyncio.to_thread(load_models, Path(kept)))
        except ArtifactError as error:
            logger.warning("bundle.keep_directory: %s", error)
        else:
            self._serves = True
