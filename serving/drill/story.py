"""The whole story, act by act.

A rule with fixed weights serves; the hardware changes, and nobody is told; the router notices; a
challenger is learned from what came since; it looks on, is tried on a share of the traffic, and becomes
champion. Then one comes with a fault that no evaluation saw, and must not. At last one command goes
back.

Everything is what a user would run: real processes over HTTP, the registry, the gates.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from steersman.agents.evidence import Evidence
from steersman.agents.gates import GateSettings
from steersman.agents.guard import GuardSettings
from steersman.agents.offpolicy.contestants import bundle_contestant
from steersman.agents.offpolicy.known_case import known_case
from steersman.agents.offpolicy.study import StudySettings, study
from steersman.agents.offpolicy.verdict import Thresholds
from steersman.agents.promotion import promote
from steersman.agents.registry import CHALLENGER, CHAMPION, RunRecord
from steersman.agents.registry_watch import RegistryWatch
from steersman.agents.retrain.retrain import STAGES, RetrainPlan, RetrainResult, retrain
from steersman.agents.retrain.settings import load_retrain_settings
from steersman.predictors.bundle import Bundle, load_bundle
from steersman.serving.canary.commands import Command
from steersman.serving.canary.state import Phase, Transition
from steersman.serving.drill.figures import Drift, Harm, P99Ratio, drift, harm, p99_ratio
from steersman.serving.drill.incumbent import incumbent
from steersman.serving.drill.sign_error import with_sign_error
from steersman.serving.drill.site import FLUSH_S, Progress, Site
from steersman.serving.replay_result import ReplayResult
from steersman.traces.errors import ArtifactError, BackendError
from steersman.traces.shadow_record import DIRECTORY, read_shadow

BY = "rehearsal"
LOG_CPU = "steersman_outcome_log_cpu_seconds_total"
CHANGED, RENEWED = "hardware changed", "new champion"
"""Acts with the same requests."""
LOOSE = GuardSettings(
    deadline_ms=1e4,
    range_tolerance=1e6,
    max_outside_share=1.0,
    max_disagreement=1.0,
    slow_factor=1e6,
    slow_slack_s=1e6,
    share_factor=1e6,
    cost_slack=1e9,
    latch_trips=10**9,
)
"""Overrules nothing that can be chosen at all. Everybody in the story is served with it, so that models
are compared and not what saves them: a guard overrules the old rule once replicas are slower, and a
bad challenger nearly always."""
Bars = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows how far an act is; called with its name and its requests."""


@dataclass(frozen=True)
class Act:
    """A replay, and under which bundle it began."""

    name: str
    version: str
    began_unix_s: float
    result: ReplayResult


@dataclass
class Story:
    """What happened."""

    acts: list[Act] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of what, and a sentence about it."""
    changed_unix_s: float = 0.0
    drift: Drift | None = None
    made: RetrainResult | None = None
    shadows: dict[str, Evidence] = field(default_factory=dict)
    """Evidence of the shadow reports, by which challenger it is about."""
    transitions: list[Transition] = field(default_factory=list)
    promoted: bool = False
    """Whether the challenger became champion with all gates passed."""
    p99: P99Ratio | None = None
    """Of TTFT after the change, under the rule and under the new champion."""
    harm: Harm = field(default_factory=lambda: Harm(0, 0, 0))
    stopped: str = ""
    """What stopped the bad challenger."""
    rollback_s: float = float("nan")
    log_cpu: float = float("nan")
    dr_error: float = float("nan")


class Rehearsal:
    """Plays the story on a site whose backends run.

    Args:
        bars: shows progress.
        say: told what happens, in sentences.
    """

    def __init__(self, site: Site, bars: Bars, say: Callable[[str], None]) -> None:
        self._site, self._bars = site, bars
        self._settings = site.settings
        self._retraining = load_retrain_settings(site.settings.retrain)
        self._say = say
        self._watch = RegistryWatch(site.registry, time.time, promotes=GateSettings())
        self.story = Story()

    def play(self) -> Story:
        """From the first request to the last."""
        site, settings = self._site, self._settings
        self._install_incumbent()
        with site.router(LOOSE):
            self._follow()
            site.warm_up(site.trace(20, seed=90))
            self._act("as it was", settings.before, seed=2)
            self._change()
            self._act(CHANGED, settings.judged, seed=3)
            self._notice()
            self._learn()
            self._follow()
            self._act("looking on", settings.shadow, seed=4)
            self._report("retrained")
            self._try("retrained", seed=100)
            self._conclude()
            self._act(RENEWED, settings.judged, seed=3)
            self._compare()
            self._bring_bad_one()
            self._act("bad one looks on", settings.shadow, seed=5)
            self._report("bad")
            self._try("bad", seed=200)
            self._count_harm()
            self._roll_back()
        self._price_log()
        self.story.dr_error = known_case().dr_error
        return self.story

    def _act(self, name: str, requests: int, *, seed: int) -> ReplayResult:
        site = self._site
        trace = site.trace(requests, seed)
        began_s, version = time.time(), site.serves()
        with self._bars(name, len(trace)) as advance:
            result = site.play(trace, advance)
        self.story.acts.append(Act(name, version, began_s, result))
        return result

    def _install_incumbent(self) -> None:
        """What serves at first goes through the registry too, so that there is a way back to it."""
        registry, now = self._site.registry, datetime.now(UTC)
        registry.check()
        rule = incumbent(self._site.directory / "incumbent", now=now)
        made = registry.log_training_run(
            rule, RunRecord(parameters={"what": "rule"}, metrics={}), run_name=rule.version
        )
        promote(
            registry,
            made.version,
            gates=GateSettings(),
            by=BY,
            now_unix_s=now.timestamp(),
            override="what has served so far: there is nothing to compare it with",
        )
        self._note("at first", f"{rule.version} serves, with weights measured before the change")

    def _follow(self) -> None:
        self._site.follow(self._watch)

    def _change(self) -> None:
        slowdowns = self._settings.slowdowns
        self._site.change_hardware(slowdowns)
        self.story.changed_unix_s = time.time()
        names = [spec.replica_id for spec in self._site.stage.scenario.replicas]
        slower = [
            f"{name} takes {factor:g} times as long"
            for name, factor in zip(names, slowdowns, strict=False)
            if factor != 1.0
        ]
        self._note("hardware", f"{' and '.join(slower)} from now on; the router is not told")

    def _notice(self) -> None:
        story, site = self.story, self._site
        story.drift = drift(site.records(), story.changed_unix_s)
        alarms = site.metric("steersman_prediction_drift_alarms_total")
        if story.drift is None:
            self._note("drift", f"was not noticed ({alarms:.0f} alarms of the router)")
            return
        found = story.drift
        self._note(
            "drift",
            f"noticed after {found.requests} requests ({found.seconds:.0f} s): {found.what}; "
            f"{alarms:.0f} alarms of the router",
        )

    def _learn(self) -> None:
        site = self._site
        plan = RetrainPlan(
            site.log, site.directory / "retraining", self._retraining, self.story.changed_unix_s
        )
        stages: dict[str, float] = {}
        with self._bars("retrain", 100) as advance:

            def tell(stage: str, share: float, note: str) -> None:
                del note
                stages[stage] = share
                advance(int(100 * sum(stages.values()) / len(STAGES)), 0)

            made = retrain(plan, site.registry, progress=tell)
        self.story.made = made
        self._note(
            "retraining",
            f"{made.bundle.version} learned from {len(made.screened.records)} requests: "
            f"{_plain(made.evidence.verdict)} ({made.evidence.reasons[0]})",
        )

    def _report(self, name: str) -> None:
        """The shadow report of the challenger that looks on."""
        site, settings = self._site, self._settings
        challenger = _served(site, CHALLENGER)
        records = site.records(self.story.changed_unix_s)
        opinions = read_shadow(site.log / DIRECTORY, challenger.version, on_damage=lambda _: None)
        plan = StudySettings(
            seeds=tuple(range(settings.streams)),
            requests=settings.judged,
            thresholds=Thresholds(decisions=settings.least_decisions),
            guard=LOOSE,
            jobs=self._retraining.jobs,
        )
        champion = bundle_contestant(_served(site, CHAMPION), LOOSE)
        found = study(records, opinions, challenger, champion, plan, now_unix_s=time.time())
        evidence = found.evidence
        self.story.shadows[name] = evidence
        version = site.registry.find(challenger.version)
        if version is not None:
            site.registry.record_evidence(version, evidence)
        scored = site.metric("steersman_shadow_scored_total")
        self._note(
            f"shadow ({name})",
            f"{_plain(evidence.verdict)} after {scored:.0f} scored requests: {evidence.reasons[0]}",
        )

    def _try(self, name: str, *, seed: int) -> None:
        """A canary, to its end; one that lasts for too many requests is aborted."""
        site, settings = self._site, self._settings
        before = len(site.canary_state().transitions)
        if site.canary_state().phase is Phase.PROMOTED:  # its challenger is champion: soon it is over
            site.wait("the end of the last canary", lambda: not site.canary_runs())
        site.move_canary(Command.START, BY)
        site.wait("the canary's start", lambda: site.canary_state().running)
        for chunk in range(-(-settings.most // settings.chunk)):
            if not site.canary_state().running:
                break
            self._act(f"canary ({name})", settings.chunk, seed=seed + chunk)
        if site.canary_state().running:
            site.move_canary(Command.ABORT, f"{BY}: it takes more than {settings.most} requests")
        state = site.canary_state()
        self.story.transitions += state.transitions[before:]
        for one in state.transitions[before:]:
            what = _plain(one.what)
            self._note(f"canary ({name})", f"{what}, {one.share:.0%} of the traffic: {one.reason}")

    def _conclude(self) -> None:
        """The registry takes up what the canary found; with all gates passed, it is champion."""
        site, made = self._site, self.story.made
        assert made is not None
        if site.canary_state().phase is not Phase.PROMOTED:
            phase = _plain(site.canary_state().phase.value)
            self._note("promotion", f"none: the canary of {made.bundle.version} was {phase}")
            return
        version = made.registered.version
        site.wait("the canary's evidence", lambda: self._took(version))
        if site.registry.version_of(CHAMPION) == version:
            self.story.promoted = True
            self._note("promotion", f"{made.bundle.version} is champion: all gates were passed")
        else:
            self._override(version)
        self._follow()

    def _took(self, version: str) -> bool:
        """Whether the registry has what the canary found; its worker looks."""
        self._watch.step()
        return any(one.kind == "canary" for one in self._site.registry.evidence(version))

    def _override(self, version: str) -> None:
        """A gate refuses; the story goes on, with the reason kept."""
        registry, now_s = self._site.registry, time.time()
        try:
            promote(registry, version, gates=GateSettings(), by=BY, now_unix_s=now_s)
        except ArtifactError as error:
            reason = "the rehearsal goes on, to show what follows"
            promote(registry, version, gates=GateSettings(), by=BY, now_unix_s=now_s, override=reason)
            self._note("promotion", f"by override: {error}")

    def _compare(self) -> None:
        story, settings = self.story, self._settings
        before = next(act for act in story.acts if act.name == CHANGED)
        story.p99 = found = p99_ratio(
            before.result, story.acts[-1].result, settling=settings.settling, seed=settings.seed
        )
        self._note(
            "p99 of TTFT",
            f"{found.before_s:.2f} s before, {found.after_s:.2f} s after the promotion, of the same "
            f"requests: a ratio of {found.ratio:.2f} [{found.lo:.2f}, {found.hi:.2f}]",
        )

    def _bring_bad_one(self) -> None:
        """In the registry, with the evaluation of what it was before a sign was lost at its export."""
        site, sound = self._site, _served(self._site, CHAMPION)
        now = datetime.now(UTC)
        made_from = self.story.made.bundle if self.story.made is not None else sound
        bad = with_sign_error(made_from, site.directory / "bad", now=now)
        made = site.registry.log_training_run(
            bad,
            RunRecord(parameters={"what": "bad example"}, metrics={}, tags={"parent": sound.version}),
            run_name=f"bad {bad.version}",
        )
        evidence = Evidence(
            kind="evaluation",
            challenger=bad.version,
            champion=sound.version,
            verdict="no_worse",
            reasons=("evaluated before its export: there it is the champion's own policy",),
            made_unix_s=now.timestamp(),
            by=BY,
        )
        site.registry.record_evidence(made.version, evidence)
        self._follow()
        self._note(
            "bad challenger",
            f"{bad.version}: sound when it was evaluated, a sign lost at its export",
        )

    def _count_harm(self) -> None:
        """From the start of its canary to the end."""
        story = self.story
        began_s = max(one.at_unix_s for one in story.transitions if one.what == "started")
        ended_s = story.transitions[-1].at_unix_s
        story.harm = counted = harm(self._site.records(began_s), began_s, ended_s)
        phase = self._site.canary_state().phase
        by = ["shadow"] if story.shadows["bad"].verdict == "worse" else []
        by += ["canary"] if phase is Phase.ROLLED_BACK else []
        story.stopped = " and ".join(by)
        self._note(
            "bad challenger",
            f"stopped by {story.stopped or 'nobody'}; it served {counted.served} of {counted.requests} "
            f"requests, of which {counted.harmed} failed or missed an objective "
            f"({counted.fraction:.1%})",
        )

    def _roll_back(self) -> None:
        """One command, timed until the router serves the champion before."""
        site, story = self._site, self.story
        previous = site.registry.served.bundle("previous")
        if previous is None:
            self._note("rollback", "there is no champion before this one")
            return
        command = [sys.executable, "-m", "steersman", "rollback", "--mlruns", str(site.registry.root)]
        began_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            site.wait("the rollback", lambda: site.serves() == previous.version)
            story.rollback_s = time.monotonic() - began_s
            _, said = process.communicate()
        if process.returncode != 0:
            raise BackendError(f"steersman rollback failed: {said.decode(errors='replace')[-200:]}")
        self._note(
            "rollback", f"{previous.version} serves again {story.rollback_s:.1f} s after the command"
        )

    def _price_log(self) -> None:
        """Processor time of a router's outcome log, over that of all else it does for its requests.

        A router with and another without would differ by more than that, log or no log.
        """
        site, off = self._site, {"enabled": False}
        trace = site.trace(self._settings.priced, seed=6)
        sections = {
            "outcome_log": {"directory": str(site.directory / "priced")},
            "shadow": off,
            "canary": off,
        }
        with site.router(LOOSE, "router-priced", sections=sections) as pid:
            site.warm_up(trace)
            before_s, log_before_s = site.cpu_s(pid), site.metric(LOG_CPU)
            with self._bars("price of the outcome log", len(trace)) as advance:
                site.play(trace, advance)
            time.sleep(FLUSH_S)
            log_s = site.metric(LOG_CPU) - log_before_s
            self.story.log_cpu = log_s / max(site.cpu_s(pid) - before_s - log_s, 1e-9)
        self._note("outcome log", f"{self.story.log_cpu:.1%} of the router's processor time")

    def _note(self, what: str, sentence: str) -> None:
        self.story.told.append((what, sentence))
        self._say(f"{what}: {sentence}")


def _plain(word: str) -> str:
    return word.replace("_", " ")


def _served(site: Site, name: str) -> Bundle:
    return load_bundle(site.registry.served.directory(name))
