"""What an OpenAI-style body tells about a request, read in one pass (SPEC A1).

The body is anybody's JSON: nothing here raises, whatever it holds; what is not understood counts as
text or as nothing. The work is bounded: sizes are taken of everything (a memory scan), but prefix
blocks are hashed for the first `MOST_BLOCKS` only (`blocks.py`), and cues are sought in the head and
tail of the last user message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import add
from typing import Any

import orjson

from steersman.predictors.blocks import BLOCK_BYTES, BLOCK_TOKENS, MOST_BLOCKS, block_hashes
from steersman.predictors.cues import Message, has_fence, looks_like_code
from steersman.predictors.wording import word_buckets
from steersman.traces.schema import Priority, QuestionType, Request, ToolChoice

MOST_TEXTS_SEARCHED = 4
"""Source code is looked for in the last few messages; a fenced block anywhere."""
_PART = 2**18
_PAIRED = ("query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
"""Where bodies that ask for scores or a ranking (vLLM, SGLang, Cohere, Jina) have their texts."""
_ANY_PAIRED = frozenset(_PAIRED)
_CALL_KEYS = ("tool_calls", "function_call")
_CALLS = frozenset(_CALL_KEYS)
_MARKS = {role: f"\x1e{role}\x1f" for role in ("system", "developer", "user", "assistant", "tool", "")}
MOST_TOOLS = 2**15 - 1
MOST_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """What the body tells. `pieces` is the text itself: it goes no further than the token counter."""

    chat: bool = False
    """Messages, rather than a bare prompt."""
    size_bytes: int = 0
    """Of the text, tool definitions included, in UTF-8."""
    token_ids: int = 0
    """Prompt tokens given as ids instead of text."""
    images: int = 0
    """Images and other attachments that are not text."""
    turns: int = 1
    tools: int = 0
    tool_choice: ToolChoice = ToolChoice.AUTO
    has_code: bool = False
    question_type: QuestionType = QuestionType.UNKNOWN
    question_bytes: int = 0
    """Of the last user message."""
    asked_tokens: int = 0
    """Length of answer that it asks for; 0: it names none."""
    words: tuple[int, ...] = ()
    """Buckets of the words at both of its ends (`wording.py`): like `pieces`, they go no further."""
    model: str = ""
    max_tokens: int | None = None
    stream: bool = False
    block_hashes: tuple[int, ...] = ()
    pieces: tuple[str, ...] = field(default=(), repr=False)

    def request(
        self,
        *,
        request_id: str,
        arrival_s: float,
        input_tokens: int,
        model: str | None = None,
        tenant: str = "",
        priority: Priority = Priority.INTERACTIVE,
        lora_adapter: str | None = None,
        session_id: str | None = None,
        hour_of_day: float | None = None,
        wording: float = 0.0,
    ) -> Request:
        """The request these features describe; the arguments are what the body does not tell."""
        return Request(
            request_id=request_id,
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            max_tokens=self.max_tokens,
            model=self.model if model is None else model,
            tenant=tenant,
            priority=priority,
            stream=self.stream,
            tools=self.tools,
            tool_choice=self.tool_choice,
            has_code=self.has_code,
            question_type=self.question_type,
            question_bytes=self.question_bytes,
            asked_tokens=self.asked_tokens,
            wording=wording,
            turns=self.turns,
            lora_adapter=lora_adapter,
            session_id=session_id,
            block_hashes=self.block_hashes,
            block_tokens=BLOCK_TOKENS if self.block_hashes else 0,
            hour_of_day=hour_of_day,
        )


def text_features(body: Any) -> TextFeatures:
    """Read a body of `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/embeddings`,
    `/v1/rerank` or `/v1/score`, already parsed.

    Never raises. Anything but an object has no features.
    """
    if not isinstance(body, dict):
        return TextFeatures()
    model = body.get("model")
    model = model if isinstance(model, str) else ""
    prompt = _Prompt()
    prompt.read(body)
    sizes = [_size(text) for text in prompt.texts]
    message = Message(prompt.last_user)
    return TextFeatures(
        chat=prompt.chat,
        size_bytes=sum(sizes),
        token_ids=len(prompt.ids),
        images=prompt.images,
        turns=max(prompt.turns, 1),
        tools=min(len(prompt.tools), MOST_TOOLS),
        tool_choice=_tool_choice(body),
        has_code=prompt.has_code(),
        question_type=message.question_type(),
        question_bytes=sizes[prompt.last_user_at] if prompt.last_user else 0,
        asked_tokens=message.asked_tokens(),
        words=word_buckets(message.words),
        model=model,
        max_tokens=_limit(body),
        stream=body.get("stream") is True,
        block_hashes=block_hashes(model, prompt.encoded()),
        pieces=tuple(prompt.texts),
    )


class _Prompt:
    """The parts of a prompt in the order a chat template lays them out."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.marks: list[str] = []
        """What precedes each text in the hashed prompt: a message's role, or nothing."""
        self.ids: array[int] = array("q")
        self.tools: list[Any] = []
        self.images = 0
        self.turns = 0
        self.chat = False
        self.last_user_at = -1
        """Position in `texts`; -1: there is no user message."""

    @property
    def last_user(self) -> str:
        """The last text of the last user message."""
        return self.texts[self.last_user_at] if self.last_user_at >= 0 else ""

    def add(self, text: str, mark: str = "") -> None:
        self.texts.append(text)
        self.marks.append(mark)

    def has_code(self) -> bool:
        first = 1 if self.tools else 0
        texts = self.texts[first:]
        return any(map(has_fence, texts)) or any(map(looks_like_code, texts[-MOST_TEXTS_SEARCHED:]))

    def read(self, body: dict[Any, Any]) -> None:
        self.tools = _tools(body)
        if self.tools:  # chat templates put them before the messages
            self.add(_dump(self.tools))
        instructions = body.get("instructions")
        if isinstance(instructions, str):
            self.add(instructions)
        messages = body.get("messages", body.get("input", body.get("prompt")))
        self.chat = "messages" in body or _has_messages(body.get("input"))
        if isinstance(messages, str):
            self.add(messages)
            self.last_user_at = len(self.texts) - 1
            self.turns = 1
        elif isinstance(messages, list):
            self._read_list(messages)
        if not _ANY_PAIRED.isdisjoint(body):
            self._read_paired(body)

    def _read_paired(self, body: dict[Any, Any]) -> None:
        for key in _PAIRED:
            texts = body.get(key)
            for text in texts if isinstance(texts, list) else (texts,):
                if isinstance(text, str):
                    self.add(text)
                elif isinstance(text, dict) and isinstance(text.get("text"), str):
                    self.add(text["text"])

    def _read_list(self, items: list[Any]) -> None:
        if items and all(type(item) is int for item in items):
            self._read_ids(items)
            return
        for item in items:
            if isinstance(item, dict):
                self._read_message(item)
            elif isinstance(item, str):
                self.add(item)
                self.last_user_at = len(self.texts) - 1
            elif isinstance(item, list) and all(type(part) is int for part in item):
                self._read_ids(item)
        self.turns = max(self.turns, 1)

    def _read_ids(self, ids: list[int]) -> None:
        self.ids.extend(number & 0x7FFF_FFFF for number in ids)

    def _read_message(self, message: dict[Any, Any]) -> None:
        self.turns += 1
        role = message.get("role")
        role = role if isinstance(role, str) else ""
        mark = _MARKS.get(role) or f"\x1e{role}\x1f"
        texts, images = _content(message.get("content"))
        if not _CALLS.isdisjoint(message):
            texts += [_dump(message[call]) for call in _CALL_KEYS if message.get(call)]
        self.images += images
        for text in texts:
            self.add(text, mark)
            mark = ""
        if role == "user" and texts:
            self.last_user_at = len(self.texts) - 1

    def encoded(self) -> Iterator[bytes]:
        """The prompt as it is hashed: roles and texts in UTF-8, then token ids."""
        most = MOST_BLOCKS * BLOCK_BYTES
        if sum(map(len, self.texts)) <= most:
            yield "".join(map(add, self.marks, self.texts)).encode("utf-8", "surrogatepass")
        else:
            for mark, text in zip(self.marks, self.texts, strict=True):
                yield (mark + text[:most]).encode("utf-8", "surrogatepass")
        if self.ids:
            # Four bytes an id: sixteen ids fill a block, as sixteen tokens of text do.
            yield array("I", self.ids[: MOST_BLOCKS * BLOCK_TOKENS]).tobytes()


def _has_messages(items: Any) -> bool:
    return isinstance(items, list) and any(isinstance(item, dict) for item in items)


def _content(content: Any) -> tuple[list[str], int]:
    """Texts and number of attachments of a message's content."""
    if isinstance(content, str):
        return [content], 0
    if not isinstance(content, list):
        return ([] if content is None else [_dump(content)]), 0
    texts, images = [], 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            text = part.get("text", part.get("refusal"))
            if isinstance(text, str):
                texts.append(text)
            else:
                images += 1
    return texts, images


def _tools(body: dict[Any, Any]) -> list[Any]:
    tools = body.get("tools", body.get("functions"))
    return tools if isinstance(tools, list) else []


def _tool_choice(body: dict[Any, Any]) -> ToolChoice:
    """`tool_choice` or the older `function_call`: a word, or an object that names one."""
    choice = body.get("tool_choice", body.get("function_call"))
    if choice == "none":
        return ToolChoice.NONE
    return ToolChoice.REQUIRED if choice == "required" or isinstance(choice, dict) else ToolChoice.AUTO


def _limit(body: dict[Any, Any]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(key)
        if type(value) is int and value > 0:
            return min(value, MOST_LIMIT)
    return None


def _size(text: str) -> int:
    if text.isascii():
        return len(text)
    # In parts, so that a long text is never in memory twice.
    return sum(
        len(text[start : start + _PART].encode("utf-8", "surrogatepass"))
        for start in range(0, len(text), _PART)
    )


def _dump(value: Any) -> str:
    """Compact JSON, as a template would show it; nothing where it cannot be written."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return ""
