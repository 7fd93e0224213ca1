"""The operators' pages of the canary."""

from __future__ import annotations

import time
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from steersman.serving.canary.canary import Canary
from steersman.serving.canary.commands import Command, change_for, describe
from steersman.serving.canary.store import StoreDown
from steersman.serving.errors import ApiError, Code
from steersman.serving.parts import Parts
from steersman.traces.errors import ConfigError

MOST_BYTES = 10_000


class CanaryPages:
    """See and move it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def status(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """How it stands, as last known here."""
        return self._told(self._canary())

    async def command(self, request: HttpRequest) -> Response:
        """`/canary/start`, `/abort` or `/promote`; the body may be `{"by": ..., "reason": ...}`."""
        name = request.path_params["command"]
        if name not in tuple(Command):
            known = ", ".join(Command)
            raise ApiError(404, Code.NOT_FOUND, f"no such command; post to /canary/ and one of: {known}")
        canary, asked = self._canary(), await _body(request)
        change = change_for(
            Command(name),
            self._parts.settings.canary,
            by=asked.get("by", "") or "an operator",
            reason=asked.get("reason", "") or "no reason given",
            now_unix_s=time.time(),
        )
        try:
            await canary.command(change)
        except ConfigError as error:
            raise ApiError(409, Code.CANARY, str(error)) from None
        except StoreDown as error:
            raise ApiError(503, Code.CANARY, f"{error}; try again") from None
        return self._told(canary)

    def _canary(self) -> Canary:
        canary = self._parts.canary
        if canary is None:
            raise ApiError(404, Code.NOT_FOUND, "there is no canary; set canary.enabled")
        return canary

    def _told(self, canary: Canary) -> Response:
        told = describe(canary.state, self._parts.settings.canary, time.time())
        return Response(orjson.dumps(told), media_type="application/json")


async def _body(request: HttpRequest) -> dict[str, str]:
    """Who and why; both may be left out."""
    body = await request.body()
    if not body:
        return {}
    try:
        values: Any = orjson.loads(body[:MOST_BYTES])
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        message = 'the body is not like {"by": "me", "reason": "why"}; send that, or nothing'
        raise ApiError(400, Code.INVALID_JSON, message)
    return values
