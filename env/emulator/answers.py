"""The bytes of answers, as vLLM writes them: chat or text completion, streamed or whole.

Everything of a chunk but the word is the same for all tokens of an answer, so a chunk is two byte
strings joined, and nothing is serialised per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from steersman.env.emulator.words import WORDS, word, word_tails

DONE = b"data: [DONE]\n\n"
_FIELDS = '"logprobs":null,"finish_reason":'
_CHAT_TAIL = '"},' + _FIELDS + "null}]}\n\n"
_TEXT_TAIL = '",' + _FIELDS + 'null,"stop_reason":null}]}\n\n'


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Answer:
    """One answer in the making."""

    def __init__(self, *, chat: bool, answer_id: str, created: int, model: str, seed: int) -> None:
        self._chat = chat
        self._seed = seed
        kind = ("chat.completion", "chat.completion.chunk") if chat else ("text_completion",) * 2
        self._common = {"id": answer_id, "object": kind[0], "created": created, "model": model}
        opening = orjson.dumps(self._common | {"object": kind[1]}).decode()[:-1]
        self._event = f"data: {opening}"
        inner = '"delta":{"content":"' if chat else '"text":"'
        self._head = f'{self._event},"choices":[{{"index":0,{inner}'.encode()
        self._tails = word_tails(_CHAT_TAIL if chat else _TEXT_TAIL)

    def opening(self) -> bytes:
        """What a stream sends together with its first token: the role, in chat."""
        if not self._chat:
            return b""
        delta = '"delta":{"role":"assistant","content":""}'
        return f'{self._event},"choices":[{{"index":0,{delta},{_FIELDS}null}}]}}\n\n'.encode()

    def tokens(self, first: int, count: int) -> bytes:
        """The chunks of tokens `first` to `first + count - 1`, none of them the last."""
        head, tails, seed, size = self._head, self._tails, self._seed, len(WORDS)
        if count == 1:
            return head + tails[(seed + first * (first + 7)) % size]
        positions = range(first, first + count)
        return b"".join([head + tails[(seed + i * (i + 7)) % size] for i in positions])

    def closing(self, last: int, finish_reason: str, usage: Usage | None) -> bytes:
        """The chunk of the last token, `usage` if it was asked for, and the end of the stream."""
        text = word(self._seed, last)
        after = "}" if self._chat else ""
        end = f'"{after},{_FIELDS}"{finish_reason}","stop_reason":null}}]}}\n\n'
        parts = [self._head, text.encode(), end.encode()]
        if usage is not None:
            parts.append(f'{self._event},"choices":[],"usage":'.encode())
            parts.append(orjson.dumps(usage.as_dict()) + b"}\n\n")
        return b"".join([*parts, DONE])

    def whole(self, finish_reason: str, usage: Usage) -> bytes:
        """The answer that was not streamed."""
        text = "".join([word(self._seed, i) for i in range(usage.completion_tokens)])
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {
            "index": 0,
            **said,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }
        return orjson.dumps(self._common | {"choices": [choice], "usage": usage.as_dict()})
