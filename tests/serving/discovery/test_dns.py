"""Names, looked up at a real name server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dns.message
import dns.rcode
import dns.rrset
import pytest

from steersman.serving.backend_settings import BackendSettings, ReplicaSettings
from steersman.serving.discovery.dns import DnsWatch
from steersman.serving.discovery.settings import DnsSource
from steersman.serving.discovery.source import DiscoveryError
from tests.serving.backends import backends, completion, whole
from tests.serving.harness import eventually, routing, settings_for

NAME = "vllm.test."


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """Answers from a zone: record type → values; what is not there does not exist."""

    zone: dict[str, list[str]] = field(default_factory=dict)
    mute: bool = False
    asked: int = 0
    address: str = ""
    _transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.asked += 1
        if self.mute:
            return
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        kind = dns.rdatatype.to_text(question.question[0].rdtype)
        if self.zone.get(kind):
            answer.answer.append(dns.rrset.from_text(NAME, 5, "IN", kind, *self.zone[kind]))
        elif not self.zone:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@contextlib.asynccontextmanager
async def name_server(**zone: list[str]) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: NameServer(dict(zone)), local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        transport.close()


class Told:
    """What a source told."""

    def __init__(self) -> None:
        self.times = 0
        self.urls: list[str] = []
        self.backends: Sequence[BackendSettings] = ()

    def __call__(self, backends: Sequence[BackendSettings]) -> None:
        self.times += 1
        self.backends = backends
        self.urls = [backend.url for backend in backends]


def source(server: NameServer, **more: Any) -> DnsSource:
    return DnsSource(name=NAME, servers=(server.address,), timeout_s=1.0, **more)


async def test_every_address_is_a_replica() -> None:
    told = Told()
    async with name_server(A=["10.0.0.2", "10.0.0.1"], AAAA=["fd00::1"]) as server:
        common = ReplicaSettings(weight=2.0, models=("m",))
        settings = source(server, port=9000, path="/llm", interval_s=7.0, replica=common)
        assert await DnsWatch(settings, told).look() == 7.0
    assert told.urls == [
        "http://10.0.0.1:9000/llm",
        "http://10.0.0.2:9000/llm",
        "http://[fd00::1]:9000/llm",
    ]
    assert {(b.weight, b.models) for b in told.backends} == {(2.0, ("m",))}
    assert told.backends[2].replica_id == "[fd00::1]:9000"


async def test_one_kind_of_address_is_enough() -> None:
    told = Told()
    async with name_server(AAAA=["fd00::1"]) as server:
        await DnsWatch(source(server), told).look()
    assert told.urls == ["http://[fd00::1]:8000"]


async def test_service_records_name_hosts_and_ports() -> None:
    told = Told()
    async with name_server(SRV=["0 1 8001 a.test.", "0 1 8002 b.test."]) as server:
        await DnsWatch(source(server, record="srv", scheme="https"), told).look()
    assert told.urls == ["https://a.test:8001", "https://b.test:8002"]


async def test_what_fails_or_finds_nothing_changes_nothing() -> None:
    told = Told()
    async with name_server(A=["10.0.0.1"]) as server:
        watch = DnsWatch(source(server), told)
        await watch.look()
        server.zone = {}
        with pytest.raises(DiscoveryError, match="no A record"):
            await watch.look()
        server.mute = True
        with pytest.raises(DiscoveryError):
            await watch.look()
    assert told.times == 1


async def test_without_servers_the_system_resolves() -> None:
    told = Told()
    await DnsWatch(DnsSource(name="localhost", port=81), told).look()
    assert "http://127.0.0.1:81" in told.urls
    with pytest.raises(DiscoveryError, match="cannot be resolved"):
        await DnsWatch(DnsSource(name="nowhere.invalid"), told).look()


async def test_the_router_follows_the_name() -> None:
    good = whole(completion())
    async with backends(good) as (replica,), name_server(SRV=["0 1 1 none.test."]) as server:
        server.zone = {"A": ["127.0.0.1"]}
        entry = {"name": NAME, "servers": [server.address], "port": replica.port, "interval_s": 0.05}
        async with routing(settings_for([], discovery={"dns": [entry]})) as router:
            assert (await router.post())[0] == 200
            server.zone = {}
            asked = server.asked
            await eventually(lambda: server.asked > asked + 4)
            assert (await router.post())[0] == 200, "a name that is gone for a while empties no pool"
