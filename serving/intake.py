"""A client's request as it comes in: read within bounds, parsed once, forwarded as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.types import Receive, Scope

from steersman.predictors.text import TextFeatures, text_features
from steersman.predictors.tokens import TokenCounter
from steersman.predictors.wording import Wording
from steersman.serving.access.caller import ANYBODY, Caller
from steersman.serving.config import RouterSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.headers import Hints, header_bytes, parse_hints
from steersman.serving.outlet import outlet_of
from steersman.serving.pool import Fleet, Pool
from steersman.serving.surface import ApiPath, Work
from steersman.traces.schema import Request


class ClientGone(Exception):  # noqa: N818 (not an error)
    """The client went away before it had sent its request."""


@dataclass(slots=True)
class Intake:
    """One request, read and understood."""

    api: ApiPath
    headers: list[tuple[bytes, bytes]]
    query: bytes
    body: bytes
    text: TextFeatures
    hints: Hints
    arrival_s: float
    user: str = ""
    """OpenAI's `user` or `safety_identifier`."""
    previous_response: str = ""
    """OpenAI's `previous_response_id`: the stored response that this one follows."""


async def read_request(
    api: ApiPath, scope: Scope, receive: Receive, arrival_s: float, settings: RouterSettings
) -> Intake:
    """Read and parse.

    Raises:
        ApiError: too large, too slow, not JSON, or a hint in a header that is not valid.
        ClientGone: nobody is there any more.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    body = await read_raw(scope, receive, settings)
    hints = parse_hints(headers, settings.objectives)
    parsed = _parse(body)
    text = text_features(parsed)
    if api.work is not Work.GENERATE:
        text = replace(text, max_tokens=1, block_hashes=())
    user = _short(parsed.get("safety_identifier")) or _short(parsed.get("user"))
    previous = _short(parsed.get("previous_response_id"))
    query = scope["query_string"]
    return Intake(api, headers, query, body, text, hints, arrival_s, user, previous)


async def read_raw(scope: Scope, receive: Receive, settings: RouterSettings) -> bytes:
    """The body, whatever it is.

    Raises:
        ApiError: it or the headers are too large, or it is too slow.
        ClientGone: nobody is there any more.
    """
    limits = settings.limits
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if header_bytes(headers) > limits.header_bytes:
        raise ApiError(
            431, Code.HEADERS_TOO_LARGE, f"headers exceed {limits.header_bytes} bytes; send fewer"
        )
    body = outlet_of(scope).take_body()  # most come together with their headers
    if body is None:
        return await _read_body(headers, receive, limits.body_bytes, settings.timeouts.body_s)
    if len(body) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    return body


def _short(value: Any) -> str:
    """A name; '' for what is none."""
    return value if isinstance(value, str) and len(value) <= 256 else ""


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        parsed = _parse_leniently(body, error)
    if not isinstance(parsed, dict):
        raise ApiError(400, Code.INVALID_JSON, "the body is not a JSON object; send one object")
    return parsed


def _parse_leniently(body: bytes, error: orjson.JSONDecodeError) -> Any:
    """What engines in Python take too: half a surrogate pair, NaN, huge numbers."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        place = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not JSON ({place}); send one object"
        raise ApiError(400, Code.INVALID_JSON, message) from None


async def _read_body(
    headers: list[tuple[bytes, bytes]], receive: Receive, limit_bytes: int, limit_s: float
) -> bytes:
    for name, value in headers:
        # The server has checked that it is a number.
        if (
            name == b"content-length"
            and len(value) < 20
            and value.isdigit()
            and int(value) > limit_bytes
        ):
            raise _too_large(limit_bytes)
    parts, more = bytearray(), True
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while more:
        message = await _receive(receive, deadline_s - asyncio.get_running_loop().time())
        parts += message.get("body", b"")
        if len(parts) > limit_bytes:
            raise _too_large(limit_bytes)
        more = message.get("more_body", False)
    return bytes(parts)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, Code.BODY_TOO_LARGE, f"the body exceeds {limit_bytes} bytes; send less")


async def _receive(receive: Receive, limit_s: float) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(limit_s):
            message = await receive()
    except TimeoutError:
        raise ApiError(
            408, Code.BODY_TIMEOUT, "the body did not arrive in time; send it again"
        ) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


def find_pool(fleet: Fleet, model: str, caller: Caller = ANYBODY) -> Pool:
    """The pool of the model that was asked for; without a name, the only one there is.

    Raises:
        ApiError: 400 without a name, 403 for a model the caller may not use, 404 for one nobody serves,
            503 while that is not known.
    """
    pool = fleet.pools.get(fleet.aliases.get(model, model))
    if pool is None and not model and len(fleet.pools) == 1 and fleet.all_known:
        pool = next(iter(fleet.pools.values()))
    if pool is not None:
        caller.check_model(model, pool.model)
        return pool
    asked = fleet.aliases.get(model, model)
    for model_instead in fleet.stand_ins.get(asked, ()):
        if model_instead in fleet.pools:
            caller.check_model(model, asked)  # what stands in for a model is for whom the model is
            return fleet.pools[model_instead]
    if fleet.aliases.get(model, model) in fleet.former_models:
        raise ApiError(
            503,
            Code.NO_HEALTHY_REPLICA,
            f"all replicas of '{_shown(model)}' are gone; try again",
            retry_after_s=5.0,
        )
    if not fleet.all_known:
        raise ApiError(
            503,
            Code.MODELS_NOT_KNOWN_YET,
            "some backends have not told which models they serve; try again",
            retry_after_s=5.0,
        )
    known = sorted(name for name in (*fleet.pools, *fleet.aliases) if _visible(fleet, name, caller))
    served = ", ".join(known[:20]) or "none"
    if not model:
        message = f"'model' is missing; name one of: {served}"
        raise ApiError(400, Code.MODEL_MISSING, message, param="model")
    message = f"no model '{_shown(model)}' here; name one of: {served}"
    raise ApiError(404, Code.MODEL_NOT_FOUND, message, param="model")


def _visible(fleet: Fleet, name: str, caller: Caller) -> bool:
    return caller.allows(name, fleet.aliases.get(name, name))


def _shown(model: str) -> str:
    return model[:200].encode("utf-8", "replace").decode()


def understand(
    intake: Intake, pool: Pool, counter: TokenCounter, wording: Wording, request_id: str
) -> Request:
    """The request's features (SPEC A1)."""
    now = datetime.now(UTC)
    adapter = any(replica.cards.get(pool.model, {}).get("parent") for replica in pool.replicas)
    is_text = intake.api.work is Work.TEXT
    return intake.text.request(
        request_id=request_id,
        arrival_s=intake.arrival_s,
        input_tokens=1 if is_text else counter.count(pool.model, intake.text),
        model=pool.model,
        tenant=intake.hints.tenant,
        priority=intake.hints.priority,
        lora_adapter=pool.model if adapter else None,
        session_id=intake.hints.session_id,
        wording=wording.score(intake.text.words),
        hour_of_day=now.hour + now.minute / 60.0 + now.second / 3600.0,
    )
