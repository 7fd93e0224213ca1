"""Requests that wait in the router, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import uvloop

from steersman.predictors import ledger as L
from tests.serving.backends import Backend, Received, backends, completion, whole
from tests.serving.harness import Routed, chat, eventually, routing, settings_for

IDLE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


class Held:
    """A backend that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._open = asyncio.Semaphore(0)

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self.asked.append(orjson.loads(request.body)["messages"][0]["content"])
        await self._open.acquire()
        await whole(completion())(request, writer)

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self._open.release()


@contextlib.asynccontextmanager
async def full(count: int = 1, **queue: Any) -> AsyncIterator[tuple[Routed, list[Held], list[Backend]]]:
    """Backends with room for one request each."""
    held = [Held() for _ in range(count)]
    async with backends(*(one.answer for one in held)) as fleet:
        for backend in fleet:
            backend.metrics = IDLE
        listed = [{"id": b.name, "url": b.url, "models": ["m"], "max_num_seqs": 1} for b in fleet]
        async with routing(
            settings_for(fleet, backends=listed, queue={"enabled": True} | queue)
        ) as router:
            yield router, held, fleet
            for one in held:
                one.release(1000)


def ask(router: Routed, text: str, priority: int = 0, **more: Any) -> asyncio.Task[Any]:
    headers = {"x-steersman-priority": str(priority)}
    return asyncio.create_task(router.post(chat(text, **more), headers=headers))


async def waiting(router: Routed, count: int) -> None:
    await eventually(lambda: router.parts.waiting_room.waiting == count)


async def test_it_waits_until_an_answer_ends_and_the_highest_class_goes_first() -> None:
    async with full() as (router, (backend,), _fleet):
        asked = [ask(router, "first")]
        await eventually(lambda: backend.asked == ["first"])
        for number, (text, priority) in enumerate([("batch", 2), ("low", 3), ("urgent", 0)]):
            asked.append(ask(router, text, priority))
            await waiting(router, number + 1)
        assert await router.metric('steersman_queue_depth{class="P2",model="m"}') == 1.0
        for served in range(2, 5):
            backend.release()
            await eventually(lambda served=served: len(backend.asked) == served)
        backend.release()
        answers = [await task for task in asked]
        assert backend.asked == ["first", "urgent", "batch", "low"]
        assert [status for status, _, _ in answers] == [200] * 4
        times_ms = [float(headers["x-steersman-queue-ms"]) for _, _, headers in answers]
        assert times_ms[3] < times_ms[1], "who came last went first"
        assert await router.metric('steersman_queue_depth{class="P2",model="m"}') == 0.0
        waits = 'steersman_queue_wait_seconds_count{class="P3",model="m"}'
        assert await router.metric(waits) == 1.0


def test_it_does_so_on_the_event_loop_that_serves() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_it_waits_until_an_answer_ends_and_the_highest_class_goes_first())
        runner.run(test_a_client_that_leaves_when_its_turn_comes_stops_nobody())


async def test_with_room_elsewhere_nobody_waits() -> None:
    async with full(2) as (router, held, _fleet):
        tasks = [ask(router, "a"), ask(router, "b")]
        await eventually(lambda: all(len(one.asked) == 1 for one in held))
        assert router.parts.waiting_room.waiting == 0
        for one in held:
            one.release()
        await asyncio.gather(*tasks)


async def test_without_the_queue_all_go_at_once() -> None:
    async with full(enabled=False) as (router, (backend,), _fleet):
        tasks = [ask(router, str(i)) for i in range(5)]
        await eventually(lambda: len(backend.asked) == 5)
        backend.release(5)
        await asyncio.gather(*tasks)


async def test_a_client_that_leaves_the_queue_was_never_sent_anywhere() -> None:
    async with full() as (router, (backend,), fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        gone, stays = ask(router, "gone"), ask(router, "stays")
        await waiting(router, 2)
        gone.cancel()
        await waiting(router, 1)
        cancelled = 'steersman_requests_total{model="m",status="cancelled"}'
        await eventually(lambda: _is(router, cancelled, 1.0))
        backend.release(2)
        await asyncio.gather(first, stays)
        assert backend.asked == ["first", "stays"]
        assert fleet[0].hung_up == 0
        assert router.parts.fleet.state[0, L.INFLIGHT] == 0.0


async def test_a_client_that_leaves_when_its_turn_comes_stops_nobody() -> None:
    async with full() as (router, (backend,), _fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        line = [ask(router, str(i)) for i in range(12)]
        await waiting(router, 12)
        for i, task in enumerate(line):
            backend.release()
            if i % 2:
                task.cancel()
            await asyncio.sleep(0)
        backend.release(12)
        answers = await asyncio.gather(first, *line[::2])
        assert [status for status, _, _ in answers] == [200] * 7
        await waiting(router, 0)


async def test_when_the_queue_is_full_the_lowest_class_is_told_to_come_back() -> None:
    async with full(max_requests=2) as (router, (backend,), _fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        low, middle = ask(router, "low", 3), ask(router, "middle", 1)
        await waiting(router, 2)
        urgent = ask(router, "urgent", 0)
        status, body, headers = await low
        error = orjson.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (503, "queue_full", "server_error")
        assert int(headers["retry-after"]) >= 1
        assert await router.metric('steersman_queue_shed_total{class="P3",reason="queue_full"}') == 1.0
        assert await router.metric('steersman_requests_total{model="m",status="rejected"}') == 1.0
        backend.release(3)
        assert [(await task)[0] for task in (first, middle, urgent)] == [200] * 3


async def test_bodies_have_a_bound_too() -> None:
    async with full(max_bytes=2**20) as (router, (backend,), _fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        small = ask(router, "s" * 1000)
        await waiting(router, 1)
        status, body, _ = await ask(router, "x" * (2**20 - 500), 3)
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "queue_full")
        backend.release(2)
        assert [(await task)[0] for task in (first, small)] == [200, 200]


async def test_what_is_too_late_may_be_refused() -> None:
    async with full(late="refuse") as (router, (backend,), _fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        hurried = {"x-steersman-slo-ttft-ms": "50"}
        status, body, _ = await router.post(chat("hurried"), headers=hurried)
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "too_late")
        backend.release()
        await first
        assert backend.asked == ["first"]


async def test_those_who_wait_are_told_when_the_last_replica_is_gone() -> None:
    async with full() as (router, (backend,), fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        line = [ask(router, str(i)) for i in range(3)]
        await waiting(router, 3)
        fleet[0].health_status = 500
        for status, body, _ in await asyncio.gather(*line):
            assert (status, orjson.loads(body)["error"]["code"]) == (503, "no_healthy_replica")
        backend.release()
        await first


async def test_those_who_wait_go_to_a_replica_that_comes_back() -> None:
    async with full(2) as (router, held, fleet):
        fleet[1].health_status = 500
        await eventually(lambda: router.parts.fleet.state[1, L.HEALTHY] == 0.0)
        first = ask(router, "first")
        await eventually(lambda: held[0].asked == ["first"])
        second = ask(router, "second")
        await waiting(router, 1)
        fleet[1].health_status = 200
        await eventually(lambda: held[1].asked == ["second"])
        for one in held:
            one.release()
        await asyncio.gather(first, second)


async def test_a_request_that_is_tried_again_has_had_its_turn() -> None:
    refusals = [whole(b"{}", status=503), whole(completion())]

    async def once(request: Received, writer: asyncio.StreamWriter) -> None:
        await refusals.pop(0)(request, writer)

    async with full(2) as (router, held, fleet):
        fleet[0].answer = once
        fleet[1].answer = held[1].answer
        tasks = [ask(router, str(i)) for i in range(2)]
        await eventually(lambda: len(held[1].asked) == 2)
        held[1].release(2)
        assert [(await task)[0] for task in tasks] == [200, 200]


async def test_what_only_one_replica_can_answer_goes_there_at_once() -> None:
    async with full(2) as (router, held, _fleet):
        tasks = [ask(router, "a"), ask(router, "b")]
        await eventually(lambda: all(len(one.asked) == 1 for one in held))
        tasks.append(ask(router, "waits"))
        await waiting(router, 1)
        router.parts.affinity.keep_response("resp_1", "", "b1")
        tasks.append(ask(router, "follows", previous_response_id="resp_1"))
        await eventually(lambda: "follows" in held[1].asked)
        assert router.parts.waiting_room.waiting == 1
        for one in held:
            one.release(2)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("path", ["/tokenize"])
async def test_what_costs_the_engine_nothing_does_not_wait(path: str) -> None:
    async with full() as (router, (backend,), _fleet):
        first = ask(router, "first")
        await eventually(lambda: backend.asked == ["first"])
        other = asyncio.create_task(router.post(chat("tokens"), path=path))
        await eventually(lambda: backend.asked == ["first", "tokens"])
        backend.release(2)
        await asyncio.gather(first, other)


async def _is(router: Routed, line: str, value: float) -> bool:
    return await router.metric(line) == value
