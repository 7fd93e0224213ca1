"""`/v1/chat/completions` and `/v1/completions`.

Plain ASGI below the router: a token costs one `send`, and a client that goes away is noticed at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from steersman.env.emulator.answers import Answer, Usage
from steersman.env.emulator.backend import Backend
from steersman.env.emulator.protocol import (
    MAX_BODY_BYTES,
    ApiError,
    ChatBody,
    TextBody,
    bad_request,
    check_model,
    header_tokens,
    output_room,
    parse_body,
)
from steersman.env.emulator.token_stream import Ending, TokenStream
from steersman.predictors.blocks import BLOCK_TOKENS
from steersman.predictors.text import text_features
from steersman.traces.headers import EMULATED_INPUT_TOKENS, EMULATED_OUTPUT_TOKENS

_INPUT = EMULATED_INPUT_TOKENS.encode()
_OUTPUT = EMULATED_OUTPUT_TOKENS.encode()


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that was understood and accepted."""

    stream: bool
    include_usage: bool
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    hashes: tuple[int, ...]
    priority: int


class CompletionEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, backend: Backend, *, chat: bool) -> None:
        self._backend = backend
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        backend = self._backend
        try:
            await backend.driver.thawed()
            data = await read_body(receive)
            backend.fail_at_random()
            rubbish = backend.rubbish_at_random()
            if rubbish is not None:
                await _start(send, rubbish[0])
                await send({"type": "http.response.body", "body": rubbish[1]})
                return
            job = self._understand(dict(scope["headers"]), data)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        driver = backend.driver
        tokens = driver.submit(
            job.prompt_tokens,
            job.output_tokens,
            job.hashes,
            job.priority,
            interval=backend.settings.stream_interval if job.stream else 0,
        )
        watch = asyncio.create_task(_watch(receive, tokens))
        try:
            await self._send(job, tokens, send)
        finally:
            watch.cancel()
            driver.drop(tokens)

    def _understand(self, headers: dict[bytes, bytes], data: bytes) -> _Job:
        backend = self._backend
        body, plain = parse_body(data, ChatBody if self._chat else TextBody)
        check_model(body.model, backend.model)
        text = text_features(plain)
        told = header_tokens(headers.get(_INPUT), EMULATED_INPUT_TOKENS)
        prompt_tokens = told or backend.counter.count(backend.model, text)
        room = output_room(prompt_tokens, body.limit, backend.driver.token_limit)
        wanted = header_tokens(headers.get(_OUTPUT), EMULATED_OUTPUT_TOKENS)
        output_tokens, finish_reason = backend.lengths.choose(wanted, plain, room)
        return _Job(
            stream=body.stream,
            include_usage=body.include_usage,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            finish_reason=finish_reason,
            hashes=text.block_hashes[: prompt_tokens // BLOCK_TOKENS],
            priority=body.priority,
        )

    async def _send(self, job: _Job, tokens: TokenStream, send: Send) -> None:
        answer = Answer(
            chat=self._chat,
            answer_id=f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}",
            created=int(time.time()),
            model=self._backend.model,
            seed=job.prompt_tokens,
        )
        if job.stream:
            await self._send_stream(job, answer, tokens, send)
        elif await tokens.wait_complete():
            usage = Usage(job.prompt_tokens, job.output_tokens, tokens.cached_tokens)
            await _start(send, b"application/json")
            await send({"type": "http.response.body", "body": answer.whole(job.finish_reason, usage)})
            self._backend.driver.page.finished[job.finish_reason] += 1

    async def _send_stream(self, job: _Job, answer: Answer, tokens: TokenStream, send: Send) -> None:
        """Returning before the last body message makes the server cut the connection."""
        backend = self._backend
        await _start(send, b"text/event-stream; charset=utf-8")
        last = job.output_tokens - 1
        opening = answer.opening()
        while True:
            first, count = await tokens.take()
            if count == 0:
                return
            await backend.driver.thawed()
            broken_at = backend.faults.break_after_tokens
            if broken_at and first + count > broken_at:
                body = opening + answer.tokens(first, max(broken_at - first, 0))
                await send({"type": "http.response.body", "body": body, "more_body": True})
                return
            if first + count <= last:
                body = opening + answer.tokens(first, count)
                await send({"type": "http.response.body", "body": body, "more_body": True})
                opening = b""
                continue
            usage = None
            if job.include_usage:
                usage = Usage(job.prompt_tokens, job.output_tokens, tokens.cached_tokens)
            body = (
                opening
                + answer.tokens(first, count - 1)
                + answer.closing(last, job.finish_reason, usage)
            )
            await send({"type": "http.response.body", "body": body})
            backend.driver.page.finished[job.finish_reason] += 1
            return


async def read_body(receive: Receive) -> bytes:
    """The whole request body.

    Raises:
        ApiError: 400, it is too long, or the client left in the middle of it.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the request body ended early")
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise bad_request(f"the request body is longer than {MAX_BODY_BYTES} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _start(send: Send, content_type: bytes) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _watch(receive: Receive, tokens: TokenStream) -> None:
    """End the stream when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    tokens.end(Ending.CLIENT_GONE)
