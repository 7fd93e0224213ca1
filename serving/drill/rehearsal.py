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

from steersman.agents.gates import GateSettings
from steersman.agents.guard import GuardSettings
from steersman.agents.offpolicy.contestants import bundle_contestant
from steersman.agents.offpolicy.known_case import known_case
from steersman.agents.offpolicy.study import StudySettings, study
from steersman.agents.offpolicy.verdict import Thresholds
from steersman.agents.promotion import promote
from steersman.agents.registry import CHALLENGER, CHAMPION
from steersman.agents.registry_watch import RegistryWatch
from steersman.agents.retrain.plan import STAGES, RetrainPlan
from steersman.agents.retrain.retrain import retrain
from steersman.agents.retrain.settings import load_retrain_settings
from steersman.predictors.bundle import Bundle, load_bundle
from steersman.serving.canary.commands import Command
from steersman.serving.canary.state import Phase
from steersman.serving.drill.entrants import enter_bad_one, enter_incumbent
from steersman.serving.drill.figures import drift, harm, p99_ratio
from steersman.serving.drill.log_price import log_price
from steersman.serving.drill.site import Bars, Site
from steersman.serving.drill.story import CHANGED, RENEWED, Act, Story
from steersman.serving.replay_result import ReplayResult
from steersman.traces.errors import ArtifactError, BackendError
from steersman.traces.shadow_record import DIRECTORY, read_shadow

BY = "rehearsal"
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
        rule = enter_incumbent(site, by=BY)
        self._note("at first", f"{rule.version} serves, with weights measured before the change")
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
        sound = _served(self._site, CHAMPION)
        made_from = self.story.made.bundle if self.story.made is not None else sound
        bad = enter_bad_one(self._site, made_from, sound, by=BY)
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
        priced = self._settings.priced
        self.story.log_cpu = log_price(self._site, priced, LOOSE, self._bars, seed=6)
        self._note("outcome log", f"{self.story.log_cpu:.1%} of the router's processor time")

    def _note(self, what: str, sentence: str) -> None:
        self.story.told.append((what, sentence))
        self._say(f"{what}: {sentence}")


def _plain(word: str) -> str:
    return word.replace("_", " ")


def _served(site: Site, name: str) -> Bundle:
    return load_bundle(site.registry.served.directory(name))
