"""Sends one request of a trace and measures its answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from steersman.serving import headers as names
from steersman.serving.completion_stream import CompletionStream, error_message, output_tokens_of
from steersman.serving.prompts import prompt_text
from steersman.traces.headers import EMULATED_INPUT_TOKENS, EMULATED_OUTPUT_TOKENS
from steersman.traces.schema import Request, Status

NAN = float("nan")
PATH = "/v1/chat/completions"
REPLICA = names.REPLICA_HEADER.decode()
FALLBACK = names.FALLBACK_HEADER.decode()
TENANT, SESSION, PRIORITY = (hint[0].decode() for hint in (names.TENANT, names.SESSION, names.PRIORITY))
REQUEST_ID = "x-request-id"
_NAME = re.compile(r"[!-~]{1,256}")
"""Names that may stand in a header."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """With whom to speak, and how."""

    client: aiohttp.ClientSession
    model: str
    force_lengths: bool = False
    salt: str = ""
    """See `prompts.prompt_text`."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How one request went; see `ReplayResult` for the fields."""

    status: Status
    http_status: int = 0
    began: bool = False
    ttft_s: float = NAN
    tpot_s: float = NAN
    e2e_s: float = NAN
    output_tokens: int = 0
    replica: str = ""
    fallback: str = ""
    error: str = ""


async def send(exchange: Exchange, request: Request) -> Sent:
    """Send and wait for the end, whatever it is; only cancellation is raised."""
    body = orjson.dumps(request_body(exchange, request))
    headers = request_headers(request)
    stream = CompletionStream()
    seen = Sent(Status.FAILED)
    sent_s = time.monotonic()
    try:
        async with exchange.client.post(PATH, data=body, headers=headers) as response:
            seen = replace(
                seen,
                http_status=response.status,
                replica=response.headers.get(REPLICA, ""),
                fallback=response.headers.get(FALLBACK, ""),
            )
            if response.status != 200:
                refusal = error_message(await response.read())
                return replace(
                    seen, status=_refused(response.status), error=f"{response.status}: {refusal}"
                )
            if not request.stream:
                tokens = output_tokens_of(await response.read())
                e2e_s = time.monotonic() - sent_s
                return replace(
                    seen, status=Status.OK, began=True, ttft_s=e2e_s, e2e_s=e2e_s, output_tokens=tokens
                )
            async for data in response.content.iter_any():
                stream.feed(data, time.monotonic())
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return _ended(replace(seen, error=reason), stream, sent_s)
    return _ended(seen, stream, sent_s)


def _ended(seen: Sent, stream: CompletionStream, sent_s: float) -> Sent:
    """The measurements of a stream that ended, well or not."""
    if stream.first_token_s is None or stream.last_data_s is None:
        return replace(
            seen, error=seen.error or stream.error or "the stream ended before the first token"
        )
    tokens = stream.output_tokens
    measured = replace(seen, began=True, ttft_s=stream.first_token_s - sent_s, output_tokens=tokens)
    error = seen.error or stream.error or ("" if stream.finished else "the stream broke off")
    if error:
        return replace(measured, error=error)
    e2e_s = stream.last_data_s - sent_s
    tpot_s = (e2e_s - measured.ttft_s) / (tokens - 1) if tokens > 1 else 0.0
    return replace(measured, status=Status.OK, e2e_s=e2e_s, tpot_s=tpot_s)


def request_body(exchange: Exchange, request: Request) -> dict[str, Any]:
    """The chat request: what the trace tells, and nothing that would give its output length away."""
    body: dict[str, Any] = {
        "model": exchange.model,
        "messages": [{"role": "user", "content": prompt_text(request, exchange.salt)}],
        "stream": request.stream,
    }
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    if exchange.force_lengths and request.output_tokens:
        body |= {"max_tokens": request.output_tokens, "ignore_eos": True}
    elif request.max_tokens:
        body["max_tokens"] = request.max_tokens
    return body


def request_headers(request: Request) -> dict[str, str]:
    """What a router takes hints from, what an emulated backend must know, and an id to join logs by."""
    headers = {
        "content-type": "application/json",
        EMULATED_INPUT_TOKENS: str(max(request.input_tokens, 1)),
    }
    if request.output_tokens is not None:
        headers[EMULATED_OUTPUT_TOKENS] = str(max(request.output_tokens, 1))
    if request.priority:
        headers[PRIORITY] = str(int(request.priority))
    named = {REQUEST_ID: request.request_id, TENANT: request.tenant, SESSION: request.session_id or ""}
    return headers | {header: name for header, name in named.items() if _NAME.fullmatch(name)}


def _refused(http_status: int) -> Status:
    refused = http_status < 500 or http_status == 503
    return Status.REJECTED if refused else Status.FAILED
