"""Secrets stay where they belong: not in logs, answers, pages, the outcome log, errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from steersman.serving.admin.listener import admin_listening
from steersman.serving.app import create_app
from steersman.traces.errors import ConfigError
from tests.serving.access.keys import bearer, make_key, write_keys
from tests.serving.backends import backends, completion, events, reset, stream, whole
from tests.serving.harness import Routed, chat, eventually, reloader_of, routing, settings_for
from tests.serving.raw import line, sized
from tests.support.valkey import valkey

ENGINE, ADMIN, STORE, PROMPT = "canary-engine-key", "canary-admin", "canary-store", "canary-prompt"


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENGINE_KEY", ENGINE), ("ADMIN_TOKEN", ADMIN), ("STORE_PASSWORD", STORE)):
        monkeypatch.setenv(name, value)


async def test_no_secret_leaves_the_router(
    tmp_path: Path, canaries: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key, entry = make_key(tenant="search", limits={"requests_per_minute": 1000, "concurrent": 50})
    late, late_entry = make_key(expires="2020-01-01T00:00:00Z")
    path = write_keys(tmp_path / "keys.yaml", entry, late_entry)
    answers = (whole(completion()), stream(events(3)), whole(b"{}", status=500), reset)
    seen: list[str] = []
    with valkey() as store:
        async with backends(*answers) as fleet:
            listed = [
                {"id": b.name, "url": b.url, "models": ["m"], "api_key_env": "ENGINE_KEY"} for b in fleet
            ]
            settings = settings_for(
                fleet,
                backends=listed,
                access={"key_file": str(path), "interval_s": 0.05},
                admin={"port": 0, "token_env": "ADMIN_TOKEN"},
                shared={"url": store.url, "password_env": "STORE_PASSWORD", "timeout_s": 1.0},
                outcome_log={"directory": str(tmp_path / "log")},
            )
            async with (
                routing(settings) as router,
                admin_listening(router.parts, reloader_of(router.parts)) as port,
            ):
                admin = f"http://127.0.0.1:{port}"
                seen += [told async for told in exercise(router, admin, key, late)]
                path.write_text(f"keys: [{{id: x, hash: {key}}}]")
                await eventually(lambda: "the former API keys stay" in caplog.text)
                seen.append(str(router.parts))
            assert all(
                r.header("authorization") == f"Bearer {ENGINE}" for b in fleet for r in b.received
            )
    written = [file.read_bytes() for file in (tmp_path / "log").rglob("*") if file.is_file()]
    assert written
    seen += [raw.decode("latin-1") for raw in written]
    everything = caplog.text + "".join(seen)
    secrets = [key, late, key.rpartition("-")[2], late.rpartition("-")[2], ENGINE, ADMIN, STORE, PROMPT]
    assert [secret for secret in secrets if secret in everything] == []


async def exercise(router: Routed, admin: str, key: str, late: str) -> AsyncIterator[str]:
    """Every way through the router, well and badly; all that it says."""
    mine = bearer(key)
    for headers in (mine, bearer(late), bearer(key + "x"), {}, {"api-key": key}, {"x-api-key": late}):
        for body in (chat(PROMPT), chat(PROMPT, stream=True), chat(PROMPT, model="none")):
            yield said(await router.post(body, headers=headers))
    yield said(await router.post(f'{{"{PROMPT}": '.encode(), headers=mine))
    yield said(await router.post(headers=mine | {"x-steersman-priority": PROMPT}))
    yield said(await router.post(headers=mine | {"x-steersman-tenant": "other"}))
    for page in ("/health", "/metrics", "/v1/models", f"/v1/models/{key}"[:12]):
        yield str(await router.get(page))
    async with line(router) as open_line:
        open_line.send(sized(b"{", b"authorization: Bearer " + key.encode()) + b"\0")
        yield (await open_line.said()).decode("latin-1")
    boom = router.parts.router.prepare
    router.parts.router.prepare = None  # type: ignore[assignment, method-assign]
    yield said(await router.post(chat(PROMPT), headers=mine))
    router.parts.router.prepare = boom  # type: ignore[method-assign]
    for page in ("/config", "/replicas", "/health", "/metrics", "/explain/x"):
        for token in (ADMIN, key):
            async with router.client.get(admin + page, headers=bearer(token)) as answer:
                yield await answer.text() + str(answer.headers)


def said(answer: tuple[int, bytes, dict[str, str]]) -> str:
    status, body, headers = answer
    # The test's own backends say nothing secret, and a replica's words are its own.
    return f"{status} {body.decode('latin-1')} {headers}"


@pytest.mark.parametrize(
    ("sections", "secret"),
    [
        ({"backends": [{"url": "http://u:canary-url@127.0.0.1:1"}]}, "canary-url"),
        ({"shared": {"url": "redis://:canary-url@127.0.0.1:1"}}, "canary-url"),
        ({"admin": {"port": 0, "token_env": "sk-canary-token"}, "backends": 3}, "sk-canary-token"),
        ({"backends": [{"url": "http://x", "api_key": "canary-key"}]}, "canary-key"),
        ({"shared": {"password": "canary-key"}}, "canary-key"),
    ],
)
def test_errors_about_the_configuration_show_none(sections: dict[str, Any], secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create_app(settings_for([], **{"backends": [{"url": "http://127.0.0.1:1"}]} | sections))
    assert secret not in str(refused.value)
