"""The pages about the router itself, and the errors of requests that reach no endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from steersman.serving import metrics as M
from steersman.serving.errors import FAULT, ApiError, Code
from steersman.serving.intake import find_pool
from steersman.serving.parts import Parts
from steersman.serving.pool import Pool
from steersman.serving.surface import SURFACE


class Pages:
    """The pages about the router itself."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def models(self, request: HttpRequest) -> Response:
        """Every model that some backend serves and the caller may use, as OpenAI lists them."""
        fleet = self._parts.fleet
        try:
            caller = self._parts.gate.caller(request.scope["headers"])
        except ApiError as error:
            return self._refused(error)
        cards = [_model_card(pool) for pool in fleet.pools.values() if caller.allows(pool.model)]
        for alias, model in fleet.aliases.items():
            usable = model in fleet.pools and alias not in fleet.pools
            if usable and caller.allows(alias, model):
                cards.append(_model_card(fleet.pools[model]) | {"id": alias})
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: HttpRequest) -> Response:
        """One of them."""
        name = request.path_params["model"]
        try:
            caller = self._parts.gate.caller(request.scope["headers"])
            return JSONResponse(_model_card(find_pool(self._parts.fleet, name, caller)) | {"id": name})
        except ApiError as error:
            return self._refused(error)

    async def health(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """200 while some replica takes requests and the router is not stopping, 503 otherwise."""
        report = self._parts.health_report()
        return JSONResponse(report, 503 if report["status"] in {"unavailable", "draining"} else 200)

    async def ready(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """The same in one word, for a load balancer."""
        status = self._parts.health_report()["status"]
        return JSONResponse({"status": status}, 503 if status in {"unavailable", "draining"} else 200)

    async def live(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """200: this process answers, whatever the replicas do; for whoever would restart it."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """The Prometheus page."""
        workers = self._parts.pages
        page = self._parts.metrics.page() if workers is None else workers.page()
        return Response(page, headers={"content-type": M.CONTENT_TYPE})

    async def not_served(self, request: HttpRequest, raised: Exception) -> Response:
        """No such path, or another method."""
        assert isinstance(raised, HTTPException)
        code = Code.METHOD_NOT_ALLOWED if raised.status_code == 405 else Code.NOT_FOUND
        what = f"{request.method} {request.url.path[:200]}"
        paths = ", ".join(api.path for api in SURFACE)
        message = f"{what}: {raised.detail}; see /v1/models, {paths}"
        return self._refused(ApiError(raised.status_code, code, message), raised.headers)

    async def failed(self, request: HttpRequest, raised: Exception) -> Response:  # noqa: ARG002
        """A fault of ours."""
        return self._refused(ApiError(500, Code.INTERNAL_ERROR, FAULT))

    def _refused(self, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
        self._parts.metrics.refusals.labels(error.code.value).inc()
        self._parts.metrics.responses.labels(str(error.status)).inc()
        told = {name.decode(): value.decode() for name, value in error.headers}
        return Response(error.body, error.status, told | dict(headers or {}))


def _model_card(pool: Pool) -> dict[str, Any]:
    """What OpenAI says of a model, with what a backend says of it."""
    told = next((r.cards[pool.model] for r in pool.replicas if pool.model in r.cards), {})
    return (
        {"id": pool.model, "object": "model", "created": 0, "owned_by": "steersman"}
        | told
        | {"id": pool.model}
    )
