"""Requests as OpenAI clients send them to vLLM, checked as vLLM checks them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Several times the longest context window, as text."""

_MOST_DIGITS = 12
"""Of a token count; Python refuses to read numbers of thousands of digits."""

Tokens = Annotated[int, Field(ge=1)]


class ApiError(Exception):
    """A refusal in the shape of OpenAI's and vLLM's error bodies."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": kind, "param": param, "code": status}

    def response(self) -> Response:
        """The answer to send."""
        return Response(orjson.dumps({"error": self._error}), self.status, media_type="application/json")


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The 400 of vLLM."""
    return ApiError(400, "BadRequestError", message, param)


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool = False


class CompletionBody(BaseModel):
    """What chat and text completions have in common. Other fields are accepted and ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    n: Literal[1] | None = 1
    """The emulator writes one answer per request."""
    ignore_eos: bool = False
    priority: int = 0

    @property
    def limit(self) -> int | None:
        """The most output tokens asked for."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream shall end with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(CompletionBody):
    """`/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None

    @property
    def limit(self) -> int | None:
        """The newer name of the limit counts first."""
        return self.max_completion_tokens or self.max_tokens


class TextBody(CompletionBody):
    """`/v1/completions`: one prompt, as text or as token ids."""

    prompt: str | list[int] | Annotated[list[str], Field(min_length=1, max_length=1)]


BodyT = TypeVar("BodyT", bound=CompletionBody)


def parse_body(data: bytes, kind: type[BodyT]) -> tuple[BodyT, dict[str, Any]]:
    """The checked request, and the plain parsed JSON.

    Raises:
        ApiError: 400, with the first thing that is wrong.
    """
    try:
        plain = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from None
    if not isinstance(plain, dict):
        raise bad_request("the request body must be a JSON object")
    try:
        return kind.model_validate(plain), plain
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"])
        raise bad_request(f"{param}: {first['msg']}", param) from None


def check_model(asked: str, served: str) -> None:
    """vLLM's 404 for a model it does not serve; no name at all means the one it serves.

    Raises:
        ApiError: 404.
    """
    if asked and asked != served:
        raise ApiError(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")


def output_room(prompt_tokens: int, limit: int | None, context_window: int) -> int:
    """Output tokens that may follow the prompt.

    Raises:
        ApiError: 400, the prompt and the limit do not fit in the context window.
    """
    room = context_window - prompt_tokens
    if room < 1 or (limit is not None and limit > room):
        output = limit or 1
        raise bad_request(
            f"This model's maximum context length is {context_window} tokens. However, you requested "
            f"{prompt_tokens + output} tokens ({prompt_tokens} in the messages, {output} in the "
            "completion). Please reduce the length of the messages or completion."
        )
    return room if limit is None else limit


def header_tokens(value: bytes | None, name: str) -> int | None:
    """A token count from one of the emulator's own headers.

    Raises:
        ApiError: 400, it is not a positive number.
    """
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MOST_DIGITS or int(value) < 1:
        raise bad_request(f"header {name}: {value[:40]!r} is not a positive number of tokens", name)
    return int(value)
