"""What is asked about a response that a replica has kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest

from steersman.predictors import ledger as L
from tests.serving.backends import Backend, Received, backends, silent, stream, whole
from tests.serving.engine_answers import sent
from tests.serving.harness import Routed, eventually, reloader_of, routing, settings_for
from tests.support.valkey import valkey

NOT_THERE = whole(b'{"error":{"message":"mine","code":404}}', status=404)


class Store:
    """A replica that keeps its responses."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.kept: dict[str, str] = {}
        self.cancelled = asyncio.Event()

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        path, _, query = request.path.partition("?")
        if path == "/v1/responses":
            await self._make(orjson.loads(request.body), request, writer)
            return
        response_id, _, what = path.removeprefix("/v1/responses/").partition("/")
        if response_id not in self.kept:
            await NOT_THERE(request, writer)
            return
        answer: dict[str, Any] = self._response(response_id)
        if what == "input_items":
            item = {"id": "i", "type": "message", "role": "user", "content": [], "query": query}
            answer = {"object": "list", "data": [item], "first_id": "i", "last_id": "i"}
            answer |= {"has_more": False}
        elif what == "cancel":
            self.kept[response_id] = "cancelled"
            self.cancelled.set()
            answer = self._response(response_id)
        elif request.method == "DELETE":
            del self.kept[response_id]
            answer = {"id": response_id, "object": "response", "deleted": True}
        elif query == "stream=true":
            created = {"type": "response.created", "response": answer, "sequence_number": 0}
            await stream(sent(created, names=True))(request, writer)
            return
        await whole(orjson.dumps(answer), headers="x-own: yes\r\n")(request, writer)

    async def _make(self, body: Any, request: Received, writer: asyncio.StreamWriter) -> None:
        response_id = f"resp_{self._name}-{len(self.kept)}"
        self.kept[response_id] = "in_progress" if body.get("background") else "completed"
        made = self._response(response_id)
        if not body.get("stream"):
            await whole(orjson.dumps(made))(request, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        writer.write(sent({"type": "response.created", "response": made}, names=True)[0])
        await writer.drain()
        await self.cancelled.wait()
        last = {"type": "response.incomplete", "response": self._response(response_id)}
        writer.write(sent(last, names=True)[0])
        await writer.drain()
        writer.close()

    def _response(self, response_id: str) -> dict[str, Any]:
        shared = {"object": "response", "created_at": 1.0, "model": "m", "output": [], "tools": []}
        shared |= {"parallel_tool_calls": True, "tool_choice": "auto"}
        return {"id": response_id, "status": self.kept[response_id]} | shared


@contextlib.asynccontextmanager
async def keeping(count: int = 3, **sections: Any) -> AsyncIterator[tuple[Routed, list[Backend]]]:
    stores = [Store(f"b{i}") for i in range(count)]
    async with backends(*stores) as fleet, routing(settings_for(fleet, **sections)) as router:
        yield router, fleet


async def made(router: Routed, **headers: str) -> tuple[str, str]:
    """The id of a new response, and who made it."""
    body = {"model": "m", "input": "hi"}
    status, answer, told = await router.post(body, path="/v1/responses", headers=headers)
    assert status == 200
    return orjson.loads(answer)["id"], told["x-steersman-replica"]


async def asked(router: Routed, method: str, path: str, **headers: str) -> tuple[int, Any, Any]:
    url = f"{router.url}/v1/responses/{path}"
    async with router.client.request(method, url, headers=headers) as answer:
        return answer.status, orjson.loads(await answer.read()), answer.headers


async def test_the_openai_client_finds_what_each_replica_keeps() -> None:
    async with (
        keeping() as (router, fleet),
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        ids = [(await client.responses.create(model="m", input="a", background=True)).id for _ in fleet]
        assert len(set(ids)) == 3
        for response_id in ids:
            assert (await client.responses.retrieve(response_id)).status == "in_progress"
            assert (await client.responses.cancel(response_id)).status == "cancelled"
            events = [e.type async for e in await client.responses.retrieve(response_id, stream=True)]
            assert events == ["response.created"]
            items = await client.responses.input_items.list(response_id, limit=7)
            assert items.data[0].model_dump()["query"] == "limit=7"
            await client.responses.delete(response_id)
            with pytest.raises(openai.NotFoundError, match="mine"):  # its holder says so itself
                await client.responses.retrieve(response_id)
        assert not router.parts.fleet.state[:, L.INFLIGHT : L.SINCE_SCRAPE].any()


async def test_the_answer_passes_as_it_is_and_tells_who_holds_it() -> None:
    async with keeping() as (router, fleet):
        response_id, holder = await made(router)
        status, answer, headers = await asked(router, "GET", response_id, **{"x-mine": "1"})
        assert (status, answer["id"]) == (200, response_id)
        assert (headers["x-own"], headers["x-steersman-replica"]) == ("yes", holder)
        seen = next(b for b in fleet if b.name == holder).received[-1]
        assert (seen.method, seen.path, seen.body) == ("GET", f"/v1/responses/{response_id}", b"")
        assert (seen.header("x-mine"), seen.header("content-length")) == ("1", None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "resp_unknown"),
        ("DELETE", "resp_unknown"),
        ("POST", "resp_unknown/cancel"),
        ("GET", "resp_unknown/input_items"),
        ("GET", "x%0d%0aevil:%20yes"),
        ("GET", "..%2f..%2fmetrics"),
    ],
)
async def test_what_nobody_is_known_to_hold_is_a_404(method: str, path: str) -> None:
    async with keeping(1) as (router, fleet):
        status, answer, _ = await asked(router, method, path)
        assert status == 404
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["code"] in {"response_not_found", "not_found"}
        assert not fleet[0].received


async def test_another_method_is_told() -> None:
    async with keeping(1) as (router, _):
        assert (await asked(router, "PUT", "resp_1"))[0] == 405
        assert (await asked(router, "GET", "resp_1/cancel"))[0] == 405


async def test_another_tenant_s_is_not_found_and_neither_is_one_whose_holder_is_gone() -> None:
    async with keeping(2) as (router, fleet):
        response_id, holder = await made(router, **{"x-steersman-tenant": "ann"})
        assert (await asked(router, "GET", response_id, **{"x-steersman-tenant": "bob"}))[0] == 404
        assert (await asked(router, "GET", response_id))[0] == 404
        ann = {"x-steersman-tenant": "ann"}
        router.parts.membership.hold(holder, hold=True)
        assert (await asked(router, "GET", response_id, **ann))[0] == 200, "though it drains"
        others = settings_for([b for b in fleet if b.name != holder])
        reloader = reloader_of(router.parts)
        reloader._read = lambda: others
        assert (await reloader.reload()).ok
        await eventually(lambda: len(router.parts.fleet.replicas) == 1)
        assert (await asked(router, "GET", response_id, **ann))[0] == 404


async def test_a_holder_that_does_not_answer() -> None:
    async with keeping(1, timeouts={"first_byte_s": 0.2, "connect_s": 0.1}) as (router, fleet):
        response_id, _ = await made(router)
        fleet[0].answer = silent
        status, answer, _ = await asked(router, "GET", response_id)
        assert (status, answer["error"]["code"]) == (504, "backend_timeout")
        await fleet[0].stop()
        status, answer, _ = await asked(router, "GET", response_id)
        assert (status, answer["error"]["code"]) == (503, "backend_unreachable")


async def test_a_client_that_leaves_is_noticed() -> None:
    async with keeping(1) as (router, fleet):
        response_id, _ = await made(router)
        fleet[0].answer = silent
        asking = asyncio.create_task(asked(router, "GET", response_id))
        await eventually(lambda: len(fleet[0].received) == 2)
        asking.cancel()
        await eventually(lambda: fleet[0].hung_up == 1)


async def test_a_stream_can_be_cancelled_by_its_id_while_it_runs() -> None:
    async with (
        keeping(2) as (router, _),
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        events = await client.responses.create(model="m", input="a", background=True, stream=True)
        async for event in events:
            if event.type == "response.created":
                cancelled = await client.responses.cancel(event.response.id)
                assert cancelled.status == "cancelled"
        assert event.type == "response.incomplete"


async def test_another_router_finds_it_too() -> None:
    with valkey() as server:
        shared = {"shared": {"url": server.url, "timeout_s": 2.0}}
        async with keeping(3, **shared) as (one, fleet), routing(settings_for(fleet, **shared)) as other:
            response_id, holder = await made(one)
            assert one.parts.shared is not None
            await one.parts.shared.settled()
            status, _, headers = await asked(other, "GET", response_id)
            assert (status, headers["x-steersman-replica"]) == (200, holder)
