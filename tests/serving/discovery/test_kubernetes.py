"""EndpointSlices, served by an emulated Kubernetes API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kmock
import orjson
import pytest
from aiohttp import web

from steersman.serving.discovery.kubernetes import LABEL, KubernetesWatch, replicas_of
from steersman.serving.discovery.settings import KubernetesSource
from steersman.serving.discovery.source import DiscoveryError
from tests.serving.backends import backends, completion, whole
from tests.serving.discovery.test_dns import Told
from tests.serving.harness import Routed, eventually, routing, settings_for

SLICES = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"


def endpoint(address: str, name: str = "", **conditions: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if name:
        made["targetRef"] = {"kind": "Pod", "name": name, "namespace": "prod"}
    return made


def slice_of(name: str, *endpoints: Any, port: int = 8000, service: str = "vllm") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "prod", "labels": {LABEL: service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[tuple[str, kmock.Server]]:
    async with kmock.KubernetesEmulator() as emulator, kmock.Server(emulator) as server:
        emulator.resources["discovery.k8s.io/v1/endpointslices"].namespaced = True
        yield str(server.url).rstrip("/"), server


def source(url: str, **more: Any) -> KubernetesSource:
    return KubernetesSource(
        namespace="prod", service="vllm", api_url=url, token_file="", retry_s=0.05, **more
    )


def urls(item: dict[str, Any], **more: Any) -> list[str]:
    return [backend.url for backend in replicas_of(item, source("http://x", **more))]


def test_ready_endpoints_are_replicas() -> None:
    item = slice_of(
        "s",
        endpoint("10.0.0.1", "pod-a", ready=True, serving=True, terminating=False),
        endpoint("10.0.0.2", "pod-b", ready=False),
        endpoint("10.0.0.3", "pod-c", ready=True, terminating=True),
        endpoint("10.0.0.4"),
        {"addresses": []},
    )
    found = replicas_of(item, source("http://x", path="/llm"))
    assert [b.url for b in found] == ["http://10.0.0.1:8000/llm", "http://10.0.0.4:8000/llm"]
    assert [b.replica_id for b in found] == ["pod-a", "10.0.0.4:8000"]


def test_ports_are_found_by_name_or_number() -> None:
    item = slice_of("s", endpoint("10.0.0.1"))
    item["ports"].append({"name": "metrics", "port": 9090})
    assert urls(item) == [], "which of the two is not said"
    assert urls(item, port="http") == ["http://10.0.0.1:8000"]
    assert urls(item, port="9090") == ["http://10.0.0.1:9090"]
    assert urls(item, port="grpc") == []
    assert urls({"metadata": {}, "ports": None, "endpoints": None}) == []


async def test_the_router_follows_the_service() -> None:
    good = whole(completion())
    async with backends(good, good) as (first, second), cluster() as (api, server):
        one = slice_of("s1", endpoint("127.0.0.1", "pod-a", ready=True), port=first.port)
        await server.client.post(SLICES, json=one)
        other = slice_of("s9", endpoint("127.0.0.1", "alien", ready=True), port=1, service="other")
        await server.client.post(SLICES, json=other)
        found = {"kubernetes": [source(api).model_dump()]}
        async with routing(settings_for([], discovery=found)) as router:
            assert await served_by(router) == {"pod-a"}
            two = slice_of("s2", endpoint("127.0.0.1", "pod-b", ready=True), port=second.port)
            await server.client.post(SLICES, json=two)
            await eventually(lambda: well(router) == {"pod-a", "pod-b"})
            assert await served_by(router) == {"pod-a", "pod-b"}
            going = {"endpoints": [endpoint("127.0.0.1", "pod-a", ready=True, terminating=True)]}
            await server.client.patch(f"{SLICES}/s1", json=going)
            await eventually(lambda: well(router) == {"pod-b"})
            assert await served_by(router) == {"pod-b"}
            await server.client.delete(f"{SLICES}/s2")
            await eventually(lambda: well(router) == set())
            assert (await router.post())[0] == 503


def well(router: Routed) -> set[str]:
    return {replica.id for replica in router.parts.fleet.replicas if replica.health.healthy}


async def served_by(router: Routed) -> set[str]:
    answers = [await router.post() for _ in range(4)]
    assert {status for status, _, _ in answers} == {200}
    return {headers["x-steersman-replica"] for _, _, headers in answers}


@contextlib.asynccontextmanager
async def api_server(answer: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get(SLICES, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_watch_that_is_too_old_is_begun_anew(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    item = slice_of("s", endpoint("10.0.0.1"))
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query) | {"auth": request.headers.get("authorization", "")})
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [item]})
        version = request.query["resourceVersion"]
        if version == "7":
            return web.Response(body=orjson.dumps(mark) + b"\n")
        return (
            web.Response(body=orjson.dumps(gone) + b"\n") if len(asked) < 4 else web.Response(status=410)
        )

    token = tmp_path / "token"
    token.write_text("first\n", encoding="ascii")
    told = Told()
    async with api_server(answer) as url:
        settings = source(url).model_copy(update={"token_file": str(token)})
        watch = KubernetesWatch(settings, told)
        await watch.look()
        token.write_text("rotated", encoding="ascii")
        pauses = [await watch.look() for _ in range(4)]
    versions = [query.get("resourceVersion", "list") for query in asked]
    assert versions == ["list", "7", "9", "list", "7"]
    assert [query["auth"] for query in asked[:2]] == ["Bearer first", "Bearer rotated"]
    assert {query["labelSelector"] for query in asked} == {f"{LABEL}=vllm"}
    assert told.urls == ["http://10.0.0.1:8000"]
    assert pauses == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_refusal_changes_nothing(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    told = Told()
    async with api_server(answer) as url:
        with pytest.raises(DiscoveryError, match=f"answered {status}"):
            await KubernetesWatch(source(url), told).look()
    with pytest.raises(DiscoveryError, match="cannot be used"):
        await KubernetesWatch(source(url), told).look()
    assert told.times == 0


async def test_rubbish_changes_nothing() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    told = Told()
    async with api_server(answer) as url:
        with pytest.raises(DiscoveryError):
            await KubernetesWatch(source(url), told).look()
    assert told.times == 0


async def test_outside_a_cluster_the_api_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(DiscoveryError, match="api_url is empty"):
        await KubernetesWatch(source(""), Told()).look()
    await asyncio.sleep(0)
