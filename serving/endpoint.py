"""Is there an OpenAI endpoint, and does it serve the model?"""

from __future__ import annotations

import aiohttp
import orjson

from steersman.serving.completion_stream import error_message
from steersman.traces.errors import BackendError


async def find_model(client: aiohttp.ClientSession, url: str, model: str) -> str:
    """The model to ask for, after seeing that the endpoint is there and has it.

    Raises:
        BackendError: unreachable, not an OpenAI endpoint, or no such model.
    """
    place = f"{url}/v1/models"
    try:
        async with client.get("/v1/models") as response:
            body = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        reason = str(getattr(error, "os_error", error)) or type(error).__name__
        raise BackendError(
            f"{place}: cannot be reached ({reason}); start the server or correct the URL"
        ) from None
    if response.status != 200:
        raise BackendError(
            f"{place}: answered {response.status} ({error_message(body)}); is the API key right?"
        )
    listed = _listed_models(body)
    if not listed:
        raise BackendError(f"{place}: lists no model; is it an OpenAI-compatible endpoint?")
    if model and model not in listed:
        raise BackendError(f"{place}: has no model '{model}'; it lists: {', '.join(listed)}")
    return model or listed[0]


def _listed_models(body: bytes) -> list[str]:
    try:
        return [str(entry["id"]) for entry in orjson.loads(body)["data"]]
    except (KeyError, TypeError, orjson.JSONDecodeError):
        return []
