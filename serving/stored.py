"""`/v1/responses/ID`: what is asked about a response that a replica has kept.

It lives on the replica that made it, so the request goes there and nowhere else, and the answer passes
as it is. Nothing is decided or predicted, and it is in nobody's account: a look costs an engine nothing.
Another tenant's response is not found, nor one whose replica is gone.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Scope, Send

from steersman.serving import headers as H
from steersman.serving.access.caller import Caller
from steersman.serving.api import Endpoint
from steersman.serving.errors import ApiError, Code
from steersman.serving.headers import parse_hints
from steersman.serving.intake import read_raw
from steersman.serving.interrupt import Interrupt, Reason
from steersman.serving.outlet import outlet_of
from steersman.serving.parts import Parts
from steersman.serving.relay import unreachable
from steersman.serving.replica import Replica
from steersman.serving.upstream import FAILURES, describe_failure
from steersman.serving.wire.response import Response

_ID = re.compile(r"resp[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class StoredPath:
    """What may be asked."""

    suffix: str
    """Of the path, after the id."""
    methods: tuple[str, ...]

    @property
    def path(self) -> str:
        """As Starlette routes it."""
        return "/v1/responses/{response_id}" + self.suffix


STORED: tuple[StoredPath, ...] = (
    StoredPath("", ("GET", "DELETE")),
    StoredPath("/cancel", ("POST",)),
    StoredPath("/input_items", ("GET",)),
)


class StoredEndpoint(Endpoint):
    """An ASGI application for one of them."""

    def __init__(self, parts: Parts, stored: StoredPath) -> None:
        super().__init__(parts)
        self._stored = stored

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        arrival_s: float,  # noqa: ARG002
        request_id: str,
    ) -> int:
        parts = self._parts
        caller = parts.gate.caller(scope["headers"])
        body = await read_raw(scope, receive, parts.settings)
        tenant = caller.take(parse_hints(scope["headers"], parts.settings.objectives)).tenant
        response_id = scope["path_params"]["response_id"]
        replica = await self._holder(response_id, tenant, caller)
        grant = await parts.limiter.admit(caller, request_id, 0.0)
        query = scope["query_string"].decode("latin-1")
        path = f"/v1/responses/{response_id}{self._stored.suffix}" + (f"?{query}" if query else "")
        headers = H.upstream_headers(
            parts.gate.passes_on(scope["headers"]),
            authorization=replica.authorization,
            request_id=request_id,
        )
        told = [(H.REPLICA_HEADER, replica.id.encode()), (H.DECISION_HEADER, request_id.encode())]
        passing = _Passing(parts, Interrupt(parts.deadlines), send, [*told, *grant.headers])
        method = b"GET" if scope["method"] == "HEAD" else scope["method"].encode()
        outlet = outlet_of(scope)
        try:
            outlet.watch(partial(passing.interrupt.fire, Reason.CLIENT_GONE))
            await passing.ask(replica, method, path, body, headers)
        finally:
            outlet.unwatch()
            parts.limiter.settle(grant, 0.0)
        return passing.status

    async def _holder(self, response_id: str, tenant: str, caller: Caller) -> Replica:
        """Raises:
        ApiError: 404, it is not here.
        """
        if _ID.fullmatch(response_id):
            home = await self._parts.affinity.holder(response_id, tenant)
            for replica in self._parts.fleet.replicas:
                if replica.id == home and caller.allows(*replica.models):
                    return replica
        message = f"Response with id '{response_id[:200]}' not found."
        raise ApiError(404, Code.RESPONSE_NOT_FOUND, message)


class _Passing:
    """One question and its answer, on the way."""

    def __init__(
        self, parts: Parts, interrupt: Interrupt, send: Send, told: list[tuple[bytes, bytes]]
    ) -> None:
        self._settings = parts.settings
        self._upstream = parts.upstream
        self._send = send
        self._told = told
        self.interrupt = interrupt
        self.status = 0
        """What the client got; 0 if nothing."""

    async def ask(
        self,
        replica: Replica,
        method: bytes,
        path: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        """Raises:
        ApiError: the replica did not answer, and nothing was sent.
        """
        within_s = replica.answers_within_s(self._settings.timeouts)
        self.interrupt.expect(within_s, Reason.BACKEND_TIMEOUT)
        response: Response | None = None
        try:
            response = await self._upstream.ask(replica, method, path, body, headers)
            await self._pass_on(response)
        except FAILURES as failure:
            # An answer that has begun ends without its end: that breaks the client's connection.
            if not self.status:
                raise unreachable(describe_failure(failure)) from None
        except asyncio.CancelledError:
            reason = self.interrupt.take()
            if reason is None:
                raise
            if reason is Reason.BACKEND_TIMEOUT and not self.status:
                message = "the replica did not answer in time; try again"
                raise ApiError(504, Code.BACKEND_TIMEOUT, message) from None
        finally:
            self.interrupt.disarm()
            if response is not None:
                response.close()

    async def _pass_on(self, response: Response) -> None:
        idle_s = self._settings.timeouts.idle_s
        headers = [*H.downstream_headers(response.raw_headers), *self._told]
        piece = b""
        if response.content_type != "text/event-stream":
            piece = await response.read_up_to(self._settings.limits.hold_bytes + 1)
            if response.at_end:
                headers.append((b"content-length", b"%d" % len(piece)))
        self.status = response.status
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        while not response.at_end:
            if piece:
                self.interrupt.expect(idle_s, Reason.CLIENT_STALLED)
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self.interrupt.expect(idle_s, Reason.BACKEND_TIMEOUT)
            piece = await response.read_some()
        await self._send({"type": "http.response.body", "body": piece})
