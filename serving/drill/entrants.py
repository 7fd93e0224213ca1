"""What a rehearsal puts into the registry besides what it trains: the rule that serves at first, and a
challenger with a fault that no evaluation saw."""

from __future__ import annotations

from datetime import UTC, datetime

from steersman.agents.evidence import Evidence
from steersman.agents.gates import GateSettings
from steersman.agents.promotion import promote
from steersman.agents.registry import RunRecord
from steersman.predictors.bundle import Bundle
from steersman.serving.drill.incumbent import incumbent
from steersman.serving.drill.sign_error import with_sign_error
from steersman.serving.drill.site import Site


def enter_incumbent(site: Site, *, by: str) -> Bundle:
    """What serves at first goes through the registry too, so that there is a way back to it."""
    registry, now = site.registry, datetime.now(UTC)
    registry.store.check()
    rule = incumbent(site.directory / "incumbent", now=now)
    made = registry.log_training_run(
        rule, RunRecord(parameters={"what": "rule"}, metrics={}), run_name=rule.version
    )
    promote(
        registry,
        made.version,
        gates=GateSettings(),
        by=by,
        now_unix_s=now.timestamp(),
        override="what has served so far: there is nothing to compare it with",
    )
    return rule


def enter_bad_one(site: Site, made_from: Bundle, sound: Bundle, *, by: str) -> Bundle:
    """In the registry, with the evaluation of what it was before a sign was lost at its export.

    Args:
        sound: the champion.
    """
    now = datetime.now(UTC)
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
        by=by,
    )
    site.registry.record_evidence(made.version, evidence)
    return bad
