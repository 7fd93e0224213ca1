"""What a client is told when its request cannot be served: the OpenAI error shape, with our codes.

::

    {"error": {"message": "no model 'x'; ...", "type": "invalid_request_error",
               "param": "model", "code": "model_not_found"}}

Messages are for people and name the fix; `code` is for programs and never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import orjson


class Code(StrEnum):
    """Machine-readable reasons."""

    INVALID_HTTP = "invalid_http"
    INVALID_JSON = "invalid_json"
    INVALID_HEADER = "invalid_header"
    MISSING_API_KEY = "missing_api_key"
    INVALID_API_KEY = "invalid_api_key"
    EXPIRED_API_KEY = "expired_api_key"
    ADMIN_ONLY = "admin_only"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    TENANT_NOT_ALLOWED = "tenant_not_allowed"
    MODEL_MISSING = "model_missing"
    MODEL_NOT_FOUND = "model_not_found"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    HEADERS_TOO_LARGE = "headers_too_large"
    HEADERS_TIMEOUT = "headers_timeout"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    QUEUE_FULL = "queue_full"
    TOO_LATE = "too_late"
    NO_HEALTHY_REPLICA = "no_healthy_replica"
    MODELS_NOT_KNOWN_YET = "models_not_known_yet"
    BACKEND_UNREACHABLE = "backend_unreachable"
    REQUEST_BREAKS_REPLICAS = "request_breaks_replicas"
    BACKEND_TIMEOUT = "backend_timeout"
    STREAM_BROKEN = "stream_broken"
    CANARY = "canary"
    INTERNAL_ERROR = "internal_error"


FAULT = "the router failed on this request; its log says why"
"""What is said of an INTERNAL_ERROR."""


class ApiError(Exception):
    """Ends a request with an error the client can read.

    Args:
        status: HTTP status.
        code: the reason.
        message: one line for people.
        param: the field or header at fault, if one is.
        retry_after_s: where waiting helps.
        kind: OpenAI's `type`; by default it follows from the status.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        kind: str = "",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.more_headers = tuple(headers)

    @property
    def body(self) -> bytes:
        """The response body."""
        kind = self.kind or ("invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code.value}
        return orjson.dumps({"error": error})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The response headers."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
            *self.more_headers,
        ]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(max(math.ceil(self.retry_after_s), 1)).encode()))
        return headers


def stream_error_event(code: Code, message: str, at_boundary: bool) -> bytes:
    """The server-sent event that ends a stream which broke; clients of OpenAI's raise on it.

    Args:
        code: the reason.
        message: one line for people.
        at_boundary: whether what was sent so far ends with a whole event.
    """
    error = {"message": message, "type": "server_error", "param": None, "code": code.value}
    lead = b"" if at_boundary else b"\n\n"
    return lead + b"data: " + orjson.dumps({"error": error}) + b"\n\n"
