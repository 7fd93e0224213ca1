"""Everything a configuration names is looked at, and told in one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steersman.predictors import code_cache
from steersman.serving.checks import Check, Verdict, check_router
from tests.serving.backends import Backend, backends, completion, whole
from tests.serving.graphs import policy_bundle
from tests.serving.harness import settings_for

GOOD = whole(completion())


async def checked(replicas: list[Backend], **sections: Any) -> dict[str, Check]:
    """By subject."""
    checks = await check_router(settings_for(replicas, **sections))
    return {each.subject: each for each in checks}


async def test_what_is_well_is_told_too(tmp_path: Path) -> None:
    async with backends(GOOD, GOOD) as fleet:
        found = await checked(fleet, outcome_log={"directory": str(tmp_path / "not" / "yet")})
    assert {each.verdict for each in found.values()} == {Verdict.OK}
    assert found["backend b0"].message.endswith("serves m; vllm metrics")
    assert found["model m"].message == "2 replicas"
    assert found["features"].message == "by numpy, as policy.compiled says"
    assert not (tmp_path / "not").exists(), "nothing is changed"


async def test_what_calculates_features_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with backends(GOOD) as fleet:
        said = [(await checked(fleet, policy={"compiled": "auto"}))["features"].message]
        folder = code_cache.cache_folder(code_cache.FEATURES)
        assert folder is not None
        code_cache.features_file(folder).touch()
        said += [(await checked(fleet, policy={"compiled": "auto"}))["features"].message]
        monkeypatch.setattr(code_cache, "cache_folder", lambda _: None)
        said += [(await checked(fleet, policy={"compiled": "auto"}))["features"].message]
        monkeypatch.setattr(code_cache, "numba_version", str)
        said += [(await checked(fleet, policy={"compiled": "auto"}))["features"].message]
    for text, part in zip(said, ("will compile", "by machine code", "anew", "[fast]"), strict=True):
        assert part in text


async def test_what_is_wrong_is_told_with_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with backends(GOOD, GOOD) as fleet:
        fleet[1].metrics = b"<html>"
        found = await checked(
            fleet,
            aliases={"chat": "nobody"},
            bundle={"directory": str(tmp_path)},
            policy={"name": "learned"},
            outcome_log={"directory": str(tmp_path / "file" / "log")},
        )
    failed = {subject for subject, each in found.items() if each.verdict is Verdict.FAIL}
    assert failed == {"backend b1", "alias chat", "bundle", "outcome log"}
    assert "correct 'aliases'" in found["alias chat"].message
    assert "outcome_log.directory" in found["outcome log"].message


async def test_what_may_not_be_meant_is_a_warning() -> None:
    async with backends(GOOD) as fleet:
        found = await checked(fleet, port=fleet[0].port, policy={"name": "learned"})
    warned = {subject for subject, each in found.items() if each.verdict is Verdict.WARN}
    assert {"listen", "policy learned", "outcome log"} <= warned
    assert Verdict.FAIL not in {each.verdict for each in found.values()}


async def test_a_bundle_is_loaded(tmp_path: Path) -> None:
    policy_bundle(tmp_path / "bundle", "v7")
    async with backends(GOOD) as fleet:
        found = await checked(
            fleet, bundle={"directory": str(tmp_path / "bundle")}, policy={"name": "learned"}
        )
    assert found["bundle"].verdict is Verdict.OK
    assert "version v7" in found["bundle"].message
    assert "policy learned" not in found
