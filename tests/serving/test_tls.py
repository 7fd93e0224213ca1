"""TLS towards clients, at a router that runs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from steersman.serving.tls import ListenerTls, ListenerTlsSettings
from steersman.traces.errors import ConfigError
from tests.serving.backends import completion, whole
from tests.serving.harness import CHAT, Routed, chat, eventually, rig
from tests.support.certificates import certificate


def section(pems: tuple[Path, Path], **more: Any) -> dict[str, Any]:
    return {"cert_file": str(pems[0]), "key_file": str(pems[1]), "interval_s": 0.05} | more


def router_pems(directory: Path) -> tuple[Path, Path]:
    return certificate(directory, "router", loopback=True)


async def ask(router: Routed, trusted: Path, own: tuple[Path, Path] | None = None) -> int:
    """Status over a new connection."""
    context = ssl.create_default_context(cafile=str(trusted))
    if own is not None:
        context.load_cert_chain(*map(str, own))
    url = router.url.replace("http://", "https://") + CHAT
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.post(url, data=orjson.dumps(chat()), ssl=context) as answer,
    ):
        await answer.read()
        return answer.status


async def test_a_renewed_certificate_is_taken_up_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = router_pems(tmp_path / "old"), router_pems(tmp_path / "new")
    serving = tmp_path / "router.pem", tmp_path / "router.key"
    for source, target in zip(old, serving, strict=True):
        target.write_bytes(source.read_bytes())
    async with rig(whole(completion()), tls=section(serving)) as (router, _):
        assert await ask(router, old[0]) == 200
        serving[0].write_bytes(new[0].read_bytes())  # its key has not come yet
        await eventually(lambda: "the former certificate stays" in caplog.text)
        assert await ask(router, old[0]) == 200
        serving[1].write_bytes(new[1].read_bytes())

        async def renewed() -> bool:
            try:
                return await ask(router, new[0]) == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

        await eventually(renewed)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(router, old[0])


async def test_clients_may_need_a_certificate(tmp_path: Path) -> None:
    pems, theirs = router_pems(tmp_path), certificate(tmp_path, "client")
    both = section(pems, client_ca_file=str(theirs[0]), min_version="1.3")
    async with rig(whole(completion()), tls=both) as (router, _):
        assert await ask(router, pems[0], theirs) == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await ask(router, pems[0])


async def test_plain_http_at_a_secure_port_is_no_answer(tmp_path: Path) -> None:
    async with rig(whole(completion()), tls=section(router_pems(tmp_path))) as (router, _):
        with pytest.raises(aiohttp.ClientError):
            await router.post()


def test_files_that_do_not_fit_are_refused_at_the_start(tmp_path: Path) -> None:
    one, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    for cert, key in ((one[0], other[1]), (tmp_path / "no.pem", one[1]), (one[1], one[0])):
        with pytest.raises(ConfigError, match="cannot be used"):
            ListenerTls(ListenerTlsSettings(cert_file=str(cert), key_file=str(key)))
