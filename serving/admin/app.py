"""The pages and levers for operators, as an ASGI application of its own."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from steersman.agents.explain import explain_record
from steersman.serving.admin.canary import CanaryPages
from steersman.serving.errors import ApiError, Code
from steersman.serving.pages import Pages
from steersman.serving.parts import Parts
from steersman.serving.reload import Reloader
from steersman.traces.errors import ConfigError, SteersmanError
from steersman.traces.outcome_log import OutcomeRecord, read_newest

Page = Callable[[HttpRequest], Awaitable[Response]]


def create_admin_app(
    parts: Parts, reloader: Reloader, environment: Mapping[str, str] | None = None
) -> Starlette:
    """The operators' surface of a router.

    Raises:
        ConfigError: the variable that should hold the token is not set.
    """
    token = _token(parts.settings.admin.token_env, os.environ if environment is None else environment)
    pages, levers, canary = Pages(parts), Levers(parts, reloader), CanaryPages(parts)

    def guarded(path: str, page: Page, method: str = "GET") -> Route:
        async def asked(request: HttpRequest) -> Response:
            if token and not _has_token(request, token):
                message = "send the header 'Authorization: Bearer TOKEN' with the admin token"
                return _refused(ApiError(401, Code.ADMIN_ONLY, message))
            try:
                return await page(request)
            except ApiError as error:
                return _refused(error)

        return Route(path, asked, methods=[method])

    app = Starlette(
        routes=[
            guarded("/health", pages.health),
            guarded("/ready", pages.ready),
            guarded("/live", pages.live),
            guarded("/metrics", pages.metrics),
            guarded("/config", levers.config),
            guarded("/replicas", levers.replicas),
            guarded("/replicas/{replica}/drain", levers.drain, "POST"),
            guarded("/replicas/{replica}/resume", levers.resume, "POST"),
            guarded("/explain/{request_id}", levers.explain),
            guarded("/reload", levers.reload, "POST"),
            guarded("/canary", canary.status),
            guarded("/canary/{command}", canary.command, "POST"),
        ],
        exception_handlers={HTTPException: _not_served, Exception: pages.failed},
    )
    app.router.redirect_slashes = False
    app.state.parts = parts
    return app


class Levers:
    """What operators may see and do beyond the router's own pages."""

    def __init__(self, parts: Parts, reloader: Reloader) -> None:
        self._parts = parts
        self._reloader = reloader

    async def config(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """The settings that count. They hold no secret: secrets are in variables and in the key file."""
        return _json(self._parts.settings.model_dump(mode="json"))

    async def replicas(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """Every replica, as last seen, with its address."""
        parts = self._parts
        now_s = parts.clock()
        told = []
        for replica in parts.fleet.replicas:
            state = parts.fleet.describe(replica, now_s)
            told.append({"url": replica.url, "models": list(replica.models), "state": state})
        return _json({"replicas": told})

    async def drain(self, request: HttpRequest) -> Response:
        """It gets no new requests."""
        return self._hold(request, hold=True)

    async def resume(self, request: HttpRequest) -> Response:
        """It gets requests again."""
        return self._hold(request, hold=False)

    async def reload(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """Read the configuration again, as SIGHUP has it; 422 if it is refused."""
        result = await self._reloader.reload()
        return _json(asdict(result), 200 if result.ok else 422)

    async def explain(self, request: HttpRequest) -> Response:
        """Why a request went to its replica, from the outcome log."""
        wanted, log = request.path_params["request_id"], self._parts.log
        directory = self._parts.settings.outcome_log.directory
        if log is None:
            raise ApiError(404, Code.NOT_FOUND, "there is no outcome log; set outcome_log.directory")

        def keep(record: OutcomeRecord) -> OutcomeRecord | None:
            return record if record.request_id == wanted and record.replica_ids else None

        def find() -> bytes:
            log.flush()
            found = read_newest(Path(directory), 1, keep)
            return orjson.dumps(explain_record(found[0]), option=_OPTIONS) if found else b""

        try:
            explained = await asyncio.to_thread(find)
        except SteersmanError as error:
            raise ApiError(404, Code.NOT_FOUND, str(error)) from None
        if not explained:
            message = "no decision with this id in the log; ids are in x-steersman-decision-id"
            raise ApiError(404, Code.NOT_FOUND, message)
        return Response(explained, media_type="application/json")

    def _hold(self, request: HttpRequest, *, hold: bool) -> Response:
        replica = request.path_params["replica"]
        if not self._parts.membership.hold(replica, hold=hold):
            known = ", ".join(replica.id for replica in self._parts.fleet.replicas)
            raise ApiError(404, Code.NOT_FOUND, f"no such replica; name one of: {known}")
        return _json({"replica": replica, "draining": hold})


_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value, option=_OPTIONS), status, media_type="application/json")


def _refused(error: ApiError) -> Response:
    told = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, told)


async def _not_served(request: HttpRequest, raised: Exception) -> Response:  # noqa: ARG001
    assert isinstance(raised, HTTPException)
    code = Code.METHOD_NOT_ALLOWED if raised.status_code == 405 else Code.NOT_FOUND
    message = (
        "ask for /health, /metrics, /config, /replicas, /explain/ID, /canary, or post to "
        "/replicas/ID/drain, /replicas/ID/resume, /reload, /canary/COMMAND; this is the "
        "operators' address"
    )
    return _refused(ApiError(raised.status_code, code, message))


def _token(name: str, environment: Mapping[str, str]) -> str:
    if not name:
        return ""
    token = environment.get(name, "").strip()
    if not token:
        raise ConfigError(
            f"admin.token_env: environment variable '{name}' is not set; set it to the admin token"
        )
    return token


def _has_token(request: HttpRequest, token: str) -> bool:
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), token.encode())
