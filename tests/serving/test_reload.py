"""A changed configuration takes effect while requests are under way, and a wrong one changes nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.config import RouterSettings
from steersman.serving.reload import LIVE, Reloaded, Reloader, merged
from steersman.traces.settings import load_settings, parse_settings
from tests.serving.backends import Backend, backends, completion, events, silent, stream, whole
from tests.serving.graphs import policy_bundle
from tests.serving.harness import Routed, chat, eventually, rig, routing, settings_for
from tests.support.certificates import certificate

GOOD = whole(completion())
TEXT = b"".join(events(8))


async def reload(router: Routed, settings: RouterSettings | Callable[[], RouterSettings]) -> Reloaded:
    read = settings if callable(settings) else lambda: settings
    return await Reloader(router.parts, read).reload()


async def served_by(router: Routed, count: int = 4) -> set[str]:
    answers = [await router.post() for _ in range(count)]
    assert {status for status, _, _ in answers} == {200}
    return {headers["x-steersman-replica"] for _, _, headers in answers}


async def test_what_is_listed_and_who_decides_changes() -> None:
    async with backends(GOOD, GOOD, GOOD) as fleet, routing(settings_for(fleet[:2])) as router:
        assert await served_by(router) == {"b0", "b1"}
        changes = {
            "policy": {"name": "weighted-round-robin"},
            "aliases": {"gpt": "m"},
            "retries": {"attempts": 1},
        }
        result = await reload(router, settings_for(fleet[1:], **changes))
        assert result == Reloaded(ok=True, changed=("aliases", "backends", "policy", "retries"))
        await eventually(lambda: [r.id for r in router.parts.fleet.replicas] == ["b1", "b2"])
        await eventually(lambda: router.parts.fleet.replicas[1].health.healthy)
        _, _, headers = await router.post(chat() | {"model": "gpt"})
        assert headers["x-steersman-policy"] == "weighted-round-robin"
        assert await served_by(router) == {"b1", "b2"}
        assert await router.metric('steersman_config_reloads_total{result="loaded"}') == 1.0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"polcy": {}}, "did you mean 'policy'"),
        ({"policy": {"name": "best"}}, "best"),
        ({"policy": {"name": "p2c", "options": {"odd": 1}}}, "odd"),
        ({"profile": "abacus"}, "abacus"),
        ({"backends": []}, "no 'backends'"),
        ({"backends": [{"url": "http://x", "api_key_env": "NOT_SET_ANYWHERE"}]}, "NOT_SET_ANYWHERE"),
        ({"backends": [{"url": "https://x", "tls": {"ca_file": "/nowhere.pem"}}]}, "/nowhere.pem"),
    ],
)
async def test_a_wrong_file_changes_nothing(
    wrong: dict[str, Any], problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "router.yaml"
    async with rig(GOOD) as (router, fleet):
        before = router.parts.settings
        values = {"backends": [{"id": "b0", "url": fleet[0].url}], "aliases": {"x": "m"}} | wrong
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        result = await reload(router, lambda: load_settings(path, RouterSettings))
        assert not result.ok
        assert problem in result.problem
        assert router.parts.settings is before
        assert router.parts.fleet.aliases == {}
        assert await served_by(router) == {"b0"}
        assert await router.metric("steersman_config_reload_ok") == 0.0
        assert await router.metric('steersman_config_reloads_total{result="refused"}') == 1.0
        assert "the former one serves on" in caplog.text
        assert (await reload(router, before)).ok
        assert await router.metric("steersman_config_reload_ok") == 1.0


async def test_no_request_fails_while_everything_changes_again_and_again() -> None:
    slow = stream(events(8), delay_s=0.01)
    names = cycle(["round-robin", "p2c", "least-connections", "learned"])
    async with backends(slow, slow, slow) as fleet, routing(settings_for(fleet)) as router:
        stopped = asyncio.Event()
        answers: list[tuple[int, bytes]] = []

        async def client() -> None:
            while not stopped.is_set():
                status, got, _ = await router.post(chat(stream=True))
                answers.append((status, got))

        clients = [asyncio.create_task(client()) for _ in range(12)]
        for listed in [fleet[:1], fleet[1:], fleet[:2], fleet[2:], fleet] * 2:
            settings = settings_for(listed, policy={"name": next(names)}, profile="h100-llama-3.1-8b")
            assert (await reload(router, settings)).ok
            ids = {backend.name for backend in listed}
            await eventually(lambda ids=ids: {r.id for r in router.parts.fleet.replicas} == ids)
            await asyncio.sleep(0.05)
        stopped.set()
        await asyncio.gather(*clients)
        assert len(answers) > 100
        assert {answer for answer in answers if answer != (200, TEXT)} == set()
        assert not router.parts.fleet.state[:, 17:22].any(), "the account is balanced"


async def test_a_replica_with_another_profile_keeps_its_health_and_its_requests() -> None:
    async with rig(stream(events(8), delay_s=0.05)) as (router, fleet):
        asking = asyncio.create_task(router.post(chat(stream=True)))
        await eventually(lambda: len(fleet[0].received) == 1)
        assert (await reload(router, settings_for(fleet, profile="l40s-llama-3.1-8b"))).ok
        assert [r.profile.name for r in router.parts.fleet.replicas][-1] == "l40s-llama-3.1-8b"
        assert router.parts.fleet.replicas[-1].health.healthy
        assert (await router.post(chat(stream=True)))[0] == 200
        assert (await asking)[:2] == (200, TEXT)
        await eventually(lambda: len(router.parts.fleet.replicas) == 1)


def draining(fleet: list[Backend], *ids: str) -> RouterSettings:
    listed = [{"id": b.name, "url": b.url, "models": ["m"], "drain": b.name in ids} for b in fleet]
    return settings_for(fleet, backends=listed)


async def test_a_replica_that_is_drained_finishes_stays_and_comes_back() -> None:
    slow = stream(events(8), delay_s=0.05)
    async with rig(slow, slow) as (router, fleet):
        asking = [asyncio.create_task(router.post(chat(stream=True))) for _ in range(2)]
        await eventually(lambda: len(fleet[0].received) == 1)
        assert (await reload(router, draining(fleet, "b0"))).ok
        assert await served_by_stream(router) == {"b1"}
        assert [answer[:2] for answer in await asyncio.gather(*asking)] == [(200, TEXT)] * 2
        _, page = await router.get("/health")
        assert b'"draining":true' in page
        assert len(router.parts.fleet.replicas) == 2
        assert (await reload(router, draining(fleet))).ok
        assert await served_by_stream(router) == {"b0", "b1"}


async def test_an_operator_drains_a_replica() -> None:
    async with rig(GOOD, GOOD) as (router, fleet):
        members = router.parts.membership
        assert members.hold("b0", hold=True)
        assert await served_by(router) == {"b1"}
        assert (await reload(router, settings_for(fleet, aliases={"x": "m"}))).ok
        assert await served_by(router) == {"b1"}, "until they say so"
        assert members.hold("b0", hold=False)
        assert await served_by(router) == {"b0", "b1"}
        assert not members.hold("nobody", hold=True)


async def served_by_stream(router: Routed) -> set[str]:
    answers = [await router.post(chat(stream=True)) for _ in range(4)]
    assert {answer[:2] for answer in answers} == {(200, TEXT)}
    return {headers["x-steersman-replica"] for _, _, headers in answers}


async def test_patience_and_limits_change_for_what_comes_then() -> None:
    async with rig(silent) as (router, fleet):
        asking = asyncio.create_task(router.post())
        await eventually(lambda: len(fleet[0].received) == 1)
        timeouts = {"first_byte_s": 0.2, "connect_s": 0.1}
        changed = settings_for(fleet, timeouts=timeouts, limits={"body_bytes": 2048})
        assert (await reload(router, changed)).ok
        assert (await router.post(chat("x" * 3000)))[0] == 413
        assert (await router.post())[0] == 504
        assert not asking.done(), "it keeps the patience it came with"
        asking.cancel()


async def test_health_and_scrape_intervals_change_for_replicas_that_are_there() -> None:
    rare = {"health": {"interval_s": 0.05, "failures": 50}, "scrape": {"interval_s": 0.05}}
    async with rig(GOOD, GOOD, **rare) as (router, fleet):
        fleet[0].health_status = 503
        await asyncio.sleep(0.3)
        assert router.parts.fleet.replicas[0].health.healthy
        assert (await reload(router, settings_for(fleet, health={"interval_s": 0.05}))).ok
        await eventually(lambda: not router.parts.fleet.replicas[0].health.healthy)


async def test_a_bundle_elsewhere_serves_at_once(tmp_path: Path) -> None:
    policy_bundle(tmp_path / "one", "v1")
    policy_bundle(tmp_path / "two", "v2")
    learned = {"policy": {"name": "learned"}, "guard": {"deadline_ms": 1000}}
    async with rig(GOOD, **learned) as (router, fleet):
        for name, version in (("one", "v1"), ("two", "v2")):
            bundle = {"directory": str(tmp_path / name)}
            assert (await reload(router, settings_for(fleet, bundle=bundle, **learned))).ok
            assert router.parts.models.version == version
            assert (await router.post())[2]["x-steersman-policy"] == "learned"


async def test_no_request_fails_while_bundles_come_and_go(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v0")
    sections = {
        "guard": {"deadline_ms": 1000},
        "policy": {"name": "learned"},
        "bundle": {"directory": str(bundle), "watch_interval_s": 0.02},
    }
    async with rig(GOOD, GOOD, **sections) as (router, _):
        stopped, policies = asyncio.Event(), []

        async def client() -> None:
            while not stopped.is_set():
                status, got, headers = await router.post()
                assert (status, got) == (200, completion())
                policies.append(headers["x-steersman-policy"])

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for version in ("v1", "v2", "v3"):
            policy_bundle(bundle, version)
            await eventually(lambda version=version: router.parts.models.version == version)
        stopped.set()
        await asyncio.gather(*clients)
        assert "learned" in policies


async def test_replicas_are_looked_for_elsewhere_without_a_gap(tmp_path: Path) -> None:
    async with backends(GOOD, GOOD) as fleet:
        for name, backend in zip(("one", "two"), fleet, strict=True):
            entry = [{"id": backend.name, "url": backend.url}]
            (tmp_path / name).write_text(yaml.safe_dump(entry), encoding="utf-8")

        def looking_in(*names: str) -> RouterSettings:
            files = [{"path": str(tmp_path / name), "interval_s": 0.05} for name in names]
            return settings_for([], discovery={"files": files})

        async with routing(looking_in("one")) as router:
            assert await served_by(router) == {"b0"}
            assert (await reload(router, looking_in("missing"))).ok
            assert await served_by(router) == {"b0"}, "the new place has named nobody yet"
            assert (await reload(router, looking_in("one", "two"))).ok
            await eventually(lambda: len(router.parts.fleet.pools["m"].ids) == 2)
            assert (await reload(router, looking_in("two"))).ok
            await eventually(lambda: [r.id for r in router.parts.fleet.replicas] == ["b1"])
            assert await served_by(router) == {"b1"}
            assert len(router.parts.searches.loops) == 1


async def test_certificates_are_read_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (certificate(tmp_path / name, "engine.test") for name in ("one", "two"))
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(first[0].read_bytes())
    backend = Backend("b0", GOOD)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*second)
    await backend.start(context)
    tls = {"ca_file": str(trusted), "server_name": "engine.test"}
    listed = [{"id": "b0", "url": f"https://127.0.0.1:{backend.port}", "models": ["m"], "tls": tls}]
    settings = settings_for([], backends=listed)
    try:
        async with routing(settings) as router:
            assert (await router.post())[0] == 503
            trusted.write_bytes(second[0].read_bytes())
            assert (await reload(router, settings)).ok
            await eventually(lambda: router.parts.fleet.replicas[0].health.healthy)
            assert await served_by(router) == {"b0"}
            trusted.write_text("no certificate", encoding="utf-8")
            assert not (await reload(router, settings)).ok
            assert await served_by(router) == {"b0"}
    finally:
        await backend.stop()


async def test_what_takes_a_restart_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with rig(GOOD) as (router, fleet):
        settings = settings_for(
            fleet,
            port=1,
            tokenizer="/no/such.json",
            limits={"connections_per_replica": 7, "body_bytes": 4096},
        )
        result = await reload(router, settings)
        assert result.ok
        assert set(result.needs_restart) == {"port", "tokenizer", "limits.connections_per_replica"}
        assert router.parts.settings.limits.body_bytes == 4096
        assert router.parts.settings.limits.connections_per_replica == 0
        assert "not changed without a restart: " in caplog.text


async def test_two_at_once_take_turns() -> None:
    async with rig(GOOD) as (router, fleet):
        reloader = Reloader(router.parts, lambda: settings_for(fleet, aliases={"x": "m"}))
        results = await asyncio.gather(*(reloader.reload() for _ in range(3)))
        assert [result.changed for result in results] == [("aliases",), (), ()]


def test_every_section_is_live_or_not_and_none_is_misspelt() -> None:
    assert set(RouterSettings.model_fields) >= LIVE


BACKENDS = {"backends": [{"url": "http://x"}]}


@given(st.integers(0, 65535), st.integers(0, 9), st.integers(1024, 9999))
def test_what_is_not_live_never_changes(port: int, connections: int, body_bytes: int) -> None:
    now = parse_settings(BACKENDS, RouterSettings, source="test")
    limits = {"connections_per_replica": connections, "body_bytes": body_bytes}
    wanted = parse_settings(BACKENDS | {"port": port, "limits": limits}, RouterSettings, source="test")
    settings, needs_restart = merged(now, wanted)
    assert settings.port == now.port
    assert settings.limits.connections_per_replica == 0
    assert settings.limits.body_bytes == body_bytes
    assert ("port" in needs_restart) is (port != now.port)
    assert merged(settings, wanted)[1] == needs_restart
