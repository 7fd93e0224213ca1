"""Challengers look on, and nobody notices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.agents.shadow.challenger import Case, Challenger
from steersman.predictors.bundle import POLICY_FILE, load_bundle
from steersman.serving.config import RouterSettings
from steersman.serving.router import Route
from steersman.serving.shadow.settings import ShadowSettings
from steersman.serving.shadow.shadow import Shadow
from steersman.traces.errors import ConfigError
from steersman.traces.outcome_log import OutcomeLogWriter, read_outcomes
from steersman.traces.settings import parse_settings
from steersman.traces.shadow_record import ShadowRecord, read_shadow
from tests.serving.backends import completion, events, stream, whole
from tests.serving.graphs import policy_bundle
from tests.serving.harness import Routed, chat, eventually, rig

GOOD = whole(completion())


def sections(log: Path, *challengers: Path, **more: Any) -> dict[str, Any]:
    shadow = {
        "enabled": True,
        "challengers": [str(path) for path in challengers],
        "watch_interval_s": 0.02,
        "most_cpu": 1.0,
    }
    return {
        "outcome_log": {"directory": str(log), "flush_interval_s": 0.05},
        "shadow": shadow | more,
    }


def opinions(log: Path) -> dict[tuple[str, float], ShadowRecord]:
    return read_shadow(log / "shadow", on_damage=lambda damage: None)


def looking_on(router: Routed) -> list[str]:
    assert router.parts.shadow is not None
    return sorted(each.version for each in router.parts.shadow.challengers.values())


async def test_two_challengers_score_what_is_served(tmp_path: Path) -> None:
    log, one, two = tmp_path / "log", tmp_path / "one", tmp_path / "two"
    policy_bundle(one, "v1")
    policy_bundle(two, "v2")
    streamed = stream([b"".join(events(4))])
    async with rig(streamed, streamed, **sections(log, one, two)) as (router, _):
        assert looking_on(router) == ["v1", "v2"]
        for _ in range(6):
            await router.post(chat(stream=True))
        scored = 'steersman_shadow_scored_total{challenger="' + str(one) + '",choice="%s"}'

        async def all_scored() -> bool:
            return sum([await router.metric(scored % choice) for choice in ("same", "other")]) == 6

        await eventually(all_scored)
        assert await router.metric("steersman_shadow_dropped_total") == 0.0
    records = {record.request_id: record for record in read_outcomes(log)}
    for version in ("v1", "v2"):
        said = read_shadow(log / "shadow", version, on_damage=lambda damage: None)
        assert {key[0] for key in said} == set(records)
        for opinion in said.values():
            record = records[opinion.request_id]
            assert opinion.decided_at_s == record.decided_at_s
            assert opinion.champion_choice == record.choice
            assert (opinion.policy, opinion.error) == ("learned", "")
            assert opinion.scores is not None
            assert opinion.scores.shape == (2,)
            assert opinion.scores[opinion.choice] == opinion.scores.max()
            assert opinion.probabilities is not None
            assert opinion.probabilities.sum() == pytest.approx(1.0)
            assert np.isfinite([*opinion.own, *opinion.champions]).all()
            case = Case.of(record)
            assert case is not None
            again = Challenger(load_bundle(one if version == "v1" else two)).opinion(case)
            assert again.scores is not None
            assert np.array_equal(opinion.scores, again.scores), "the log tells all that was known"
            assert np.allclose(opinion.champions, again.champions)


async def test_a_challenger_comes_changes_and_goes(tmp_path: Path) -> None:
    log, bundle = tmp_path / "log", tmp_path / "challenger"
    async with rig(GOOD, GOOD, **sections(log, bundle)) as (router, _):
        assert looking_on(router) == []
        await router.post()  # nobody looks on, nothing waits
        assert router.parts.shadow is not None
        assert router.parts.shadow.queued == 0
        policy_bundle(bundle, "v1")
        await eventually(lambda: looking_on(router) == ["v1"])
        policy_bundle(bundle, "v2")
        await eventually(lambda: looking_on(router) == ["v2"])
        info = f'steersman_shadow_info{{challenger="{bundle}",version="%s"}}'
        assert await router.metric(info % "v1") == 0.0
        assert await router.metric(info % "v2") == 1.0
        await router.post()
        await eventually(lambda: bool(opinions(log)))
        (opinion,) = opinions(log).values()
        assert opinion.challenger == "v2"
        shutil.rmtree(bundle)
        await eventually(lambda: looking_on(router) == [])
        assert (await router.post())[0] == 200


async def test_a_bundle_that_is_refused_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, bundle = tmp_path / "log", tmp_path / "challenger"
    policy_bundle(bundle, "v1")
    async with rig(GOOD, **sections(log, bundle)) as (router, _):
        (bundle / POLICY_FILE).write_bytes(b"garbage")
        (bundle / "bundle.json").touch()
        refused = f'steersman_shadow_bundle_loads_total{{challenger="{bundle}",result="refused"}}'

        async def is_refused() -> bool:
            return await router.metric(refused) == 1.0

        await eventually(is_refused)
        assert looking_on(router) == ["v1"]
        assert (await router.post())[0] == 200
    (line,) = [r.getMessage() for r in caplog.records if "challenger refused" in r.getMessage()]
    assert "v1 goes on looking on" in line
    assert "\n" not in line


async def test_a_challenger_that_fails_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, good, bad = tmp_path / "log", tmp_path / "good", tmp_path / "bad"
    policy_bundle(good, "v1")
    policy_bundle(bad, "v2")

    class Broken:
        version = "v2"

        def opinion(self, case: Case) -> ShadowRecord:
            raise ValueError("it is\nbroken")

        failed = Challenger.failed

    async with rig(GOOD, GOOD, **sections(log, good, bad)) as (router, _):
        shadow = router.parts.shadow
        assert shadow is not None
        challengers: dict[str, Any] = dict(shadow.challengers)
        challengers[str(bad)] = Broken()
        shadow.challengers = challengers
        for _ in range(3):
            assert (await router.post())[0] == 200
        failed = f'steersman_shadow_errors_total{{challenger="{bad}"}}'

        async def all_failed() -> bool:
            return await router.metric(failed) == 3.0

        await eventually(all_failed)
        await eventually(lambda: len(read_shadow(log / "shadow", "v1", on_damage=print)) == 3)
    errors = [said.error for said in read_shadow(log / "shadow", "v2", on_damage=print).values()]
    assert errors == ["ValueError: it is"] * 3
    lines = [r.getMessage() for r in caplog.records if "further failures" in r.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]


async def test_what_is_too_much_is_dropped_and_never_waited_for(tmp_path: Path) -> None:
    """With the thread at rest the queue fills up to its bound; what comes then is only counted."""
    log, bundle = tmp_path / "log", tmp_path / "challenger"
    policy_bundle(bundle, "v1")
    async with rig(GOOD, **sections(log, bundle, queue_requests=2, most_cpu=1e-9)) as (router, _):
        for _ in range(9):
            assert (await router.post())[0] == 200
        shadow = router.parts.shadow
        assert shadow is not None
        scored = 9 - shadow.queued - shadow.dropped
        assert shadow.queued <= 2
        assert 0 <= scored <= 6
        assert await router.metric("steersman_shadow_dropped_total") == shadow.dropped >= 1


async def test_the_share_of_cpu_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case costs half a second on this clock; a quarter of 20 s allows for ten of them."""
    bundle = tmp_path / "challenger"
    policy_bundle(bundle, "v1")
    taken: list[Route] = []
    async with rig(GOOD, **sections(tmp_path / "log", tmp_path / "none")) as (router, _):
        live = router.parts.shadow
        assert live is not None
        monkeypatch.setattr(live, "offer", taken.append)
        await router.post()
        now, spent = [100.0], [0.0]

        def cpu() -> float:
            spent[0] += 0.5  # asked before and after each case: half a second between
            return spent[0]

        settings = ShadowSettings(challengers=(str(bundle),), most_cpu=0.25)
        log = OutcomeLogWriter(tmp_path / "said", stem="shadow")
        shadow = Shadow(settings, log, router.parts.metrics, lambda: now[0], cpu)
        shadow.challengers = {str(bundle): Challenger(load_bundle(bundle))}
        for _ in range(50):
            shadow.offer(taken[0])
        done = 0
        for _ in range(20):
            now[0] += 1.0
            done += shadow.work()
        shadow.close()
        assert 9 <= done <= 11
        assert shadow.dropped == 50 - done


def test_it_needs_a_log_and_directories() -> None:
    backend = {"backends": [{"url": "http://127.0.0.1:1"}]}
    with pytest.raises(ConfigError, match=r"outcome_log\.directory"):
        parse_settings(backend | {"shadow": {"enabled": True}}, RouterSettings, source="test")
    for wrong in ([], ["a", "a"], [""]):
        with pytest.raises(ConfigError, match="challengers"):
            parse_settings({"challengers": wrong}, ShadowSettings, source="test")
