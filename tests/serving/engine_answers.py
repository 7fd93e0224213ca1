"""A replica that answers the whole OpenAI surface, in the shapes and the order of fields of vLLM."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import orjson

from tests.serving.backends import Behaviour, Received, stream, whole

USAGE = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
RESPONSE_USAGE = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Z\u00fcrich"}'},
}


async def engine(request: Received, writer: asyncio.StreamWriter) -> None:
    """Answer as the path and the body ask."""
    body = orjson.loads(request.body)
    make = _ANSWERS.get(request.path)
    answer = make(body) if make else whole(b'{"detail":"Not Found"}', status=404)
    await answer(request, writer)


def sent(*events: Any, names: bool = False) -> list[bytes]:
    """Events of a stream as they go over the wire."""
    lead = [f"event: {event['type']}\n".encode() if names else b"" for event in events]
    return [a + b"data: " + orjson.dumps(b) + b"\n\n" for a, b in zip(lead, events, strict=True)]


def _chat(body: dict[str, Any]) -> Behaviour:
    called = bool(body.get("tools"))
    if body.get("stream"):
        return stream([*sent(*_chat_deltas(body, called)), b"data: [DONE]\n\n"])
    message: dict[str, Any] = {"role": "assistant", "content": None if called else _text(body)}
    message |= {"tool_calls": [CALL]} if called else {}
    choices = [
        {
            "index": i,
            "message": message,
            "logprobs": _logprobs(body),
            "finish_reason": "tool_calls" if called else "stop",
        }
        for i in range(body.get("n", 1))
    ]
    return _object("chat.completion", body, choices=choices, usage=USAGE)


def _chat_deltas(body: dict[str, Any], called: bool) -> list[Any]:
    function: Any = CALL["function"]
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    if called:
        deltas.append({"tool_calls": [{"index": 0} | CALL | {"function": function | {"arguments": ""}}]})
        pieces = (function["arguments"][:5], function["arguments"][5:])
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": p}}]} for p in pieces]
    else:
        deltas += [{"content": word} for word in _text(body)]
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    made = [
        chunk | {"choices": [{"index": i, "delta": delta, "finish_reason": None}]}
        for delta in deltas
        for i in range(body.get("n", 1))
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        made.append(chunk | {"choices": [], "usage": USAGE})
    return made


def _text(body: dict[str, Any]) -> str:
    if body.get("response_format"):
        return '{"a": 1}'
    parts = body["messages"][-1]["content"]
    return "an image" if isinstance(parts, list) else "sea"


def _logprobs(body: dict[str, Any]) -> Any:
    one = {"token": "sea", "logprob": -0.25, "bytes": [115, 101, 97], "top_logprobs": []}
    return {"content": [one]} if body.get("logprobs") else None


def _completion(body: dict[str, Any]) -> Behaviour:
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    choices = [{"index": i, "text": f"{p}!", "finish_reason": "stop"} for i, p in enumerate(prompts)]
    return _object("text_completion", body, choices=choices, usage=USAGE)


def _responses(body: dict[str, Any]) -> Behaviour:
    part: dict[str, Any] = {"type": "output_text", "text": "sea", "annotations": []}
    item: dict[str, Any] = {"id": "msg-1", "type": "message", "role": "assistant", "status": "completed"}
    shared: dict[str, Any] = {"id": "resp-1", "object": "response", "created_at": 1.0}
    shared |= {"model": body["model"], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    begun = shared | {"output": [], "status": "in_progress"}
    done = shared | {"output": [item | {"content": [part]}], "status": "completed"}
    done |= {"usage": RESPONSE_USAGE, "user": None}
    if not body.get("stream"):
        return whole(orjson.dumps(done))
    at: dict[str, Any] = {"output_index": 0, "item_id": "msg-1", "content_index": 0}
    deltas: list[Any] = [
        {"type": "response.output_text.delta", "delta": c, "logprobs": []} | at for c in "sea"
    ]
    last: dict[str, Any] = {"type": "response.output_text.done", "text": "sea", "logprobs": []} | at
    told = [
        {"response": begun, "type": "response.created"},
        {"response": begun, "type": "response.in_progress"},
        {"output_index": 0, "item": item | {"content": []}, "type": "response.output_item.added"},
        {"type": "response.content_part.added", "part": part | {"text": ""}} | at,
        *deltas,
        last,
        {"type": "response.content_part.done", "part": part} | at,
        {"output_index": 0, "item": item | {"content": [part]}, "type": "response.output_item.done"},
        {"response": done, "type": "response.completed"},
    ]
    numbered = [event | {"sequence_number": i} for i, event in enumerate(told)]
    return stream(sent(*numbered, names=True))


def _embeddings(body: dict[str, Any]) -> Behaviour:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [(float(len(text)), 0.5, -1.0) for text in texts]
    if body.get("encoding_format") == "base64":
        shown: list[Any] = [base64.b64encode(struct.pack("<3f", *v)).decode() for v in vectors]
    else:
        shown = list(vectors)
    data = [{"index": i, "object": "embedding", "embedding": v} for i, v in enumerate(shown)]
    usage = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}
    return _object("list", body, data=data, usage=usage)


def _rerank(body: dict[str, Any]) -> Behaviour:
    results = [{"index": i, "relevance_score": 1.0 / (1 + i)} for i in range(len(body["documents"]))]
    return _object("list", body, results=results, usage={"total_tokens": 20})


def _score(body: dict[str, Any]) -> Behaviour:
    data = [{"index": 0, "object": "score", "score": 0.5}]
    return _object("list", body, data=data, usage={"prompt_tokens": 6, "total_tokens": 6})


def _tokenize(_body: dict[str, Any]) -> Behaviour:
    return whole(b'{"count":2,"max_model_len":4096,"tokens":[1,2]}')


def _detokenize(_body: dict[str, Any]) -> Behaviour:
    return whole(b'{"prompt":"hi"}')


def _object(kind: str, body: dict[str, Any], **members: Any) -> Behaviour:
    return whole(
        orjson.dumps({"id": "x-1", "object": kind, "created": 1, "model": body["model"]} | members)
    )


_ANSWERS = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _responses,
    "/v1/embeddings": _embeddings,
    "/v1/rerank": _rerank,
    "/v2/rerank": _rerank,
    "/rerank": _rerank,
    "/v1/score": _score,
    "/score": _score,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
}
