"""What kind of answer a prompt asks for, and how long a one, by cheap cues in its wording (SPEC A1).

Not understanding: words and a few regular expressions over the head and tail of the last user message,
tried in order of how telling they are. An expression is tried only where one of its words is there: that
spares most of the time. Features of a forest, which learns how far to trust them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from steersman.traces.schema import QuestionType

WINDOW = 256
"""Characters looked at, at each end of a text."""
FENCE_WINDOW = 65_536
"""Characters searched for a fenced block, at each end of a text."""
MOST_ASKED_TOKENS = 32_768

_WORD = re.compile(r"[a-z0-9+#'\x80-\U0010ffff]+")


class Cue(NamedTuple):
    """One kind of question."""

    kind: QuestionType
    words: frozenset[str]
    """Any of these tells."""
    pattern: re.Pattern[str]
    triggers: frozenset[str]
    """Words without any of which the pattern cannot be there."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CUES: tuple[Cue, ...] = (
    Cue(
        QuestionType.TRANSLATION,
        _words(
            "translate translates translated translating translation traduce traduis traduire traducir "
            "traduzir traduction übersetze übersetzen übersetzung переведи перевести"
        ),
        re.compile("翻译|翻譯|翻訳"),
        frozenset(),
    ),
    Cue(
        QuestionType.CODE,
        _words(
            "python javascript typescript java c++ c# rust golang sql bash html css regex react docker "
            "dockerfile kubernetes stacktrace refactor debug segfault compiler"
        ),
        re.compile(
            r"\b(?:api endpoint|unit tests?|stack trace|compil(?:e|ation) error)\b|"
            r"\b(?:write|implement|fix|create)\b[^.?!\n]{0,60}"
            r"\b(?:function|class|script|program|code|query|method|algorithm|module)\b"
        ),
        _words("api unit stack compile compilation write implement fix create"),
    ),
    Cue(
        QuestionType.EXTRACTION,
        _words(
            "extract summarize summarise summary tldr classify categorize categorise paraphrase "
            "proofread"
        ),
        re.compile(
            r"\b(?:tl;dr|label each|rewrite the|keywords? (?:from|of)|named entit|"
            r"(?:according to|based on) the (?:text|passage|context|document))|总结|摘要|提取"
        ),
        _words("tl label rewrite keyword keywords named according based"),
    ),
    Cue(
        QuestionType.CREATIVE,
        _words("brainstorm imagine roleplay"),
        re.compile(
            r"\b(?:write|compose|draft|tell|create|make up|invent)\b[^.?!\n]{0,60}"
            r"\b(?:story|poem|song|lyrics|essay|novel|haiku|sonnet|joke|script|dialogue|scene|letter|"
            r"blog(?: post)?|article|speech|slogan|tagline|limerick|rap)\b|\brole-play\b|写一[首篇个]"
        ),
        _words("write compose draft tell create make invent role"),
    ),
    Cue(
        QuestionType.REASONING,
        _words(
            "prove proof derive solve calculate compute reason reasoning probability equation integral "
            "theorem compare analyze analyse tradeoff tradeoffs"
        ),
        re.compile(
            r"\b(?:evaluate the|step[- ]by[- ]step|how many|how much|logic(?:al)? puzzle|pros and cons|"
            r"trade-offs?|explain why|why (?:is|are|do|does|did|would|should))\b|证明|计算|为什么"
        ),
        _words("evaluate step how logic logical pros trade explain why"),
    ),
    Cue(
        QuestionType.FACTUAL,
        frozenset(),
        re.compile(
            r"\A\W*(?:who|what|when|where|which|whose|is|are|was|were|do|does|did|can|how|define|name|list|"
            r"tell me about|explain|describe|give me)\b|是什么|谁是|哪里"
        ),
        _words(
            "who what when where which whose is are was were do does did can how define name list tell "
            "explain describe give"
        ),
    ),
    Cue(
        QuestionType.CHAT,
        frozenset(),
        re.compile(
            r"\A\W*(?:hi|hello|hey|yo|thanks?|thank you|ok(?:ay)?|good (?:morning|evening|night)|sure|"
            r"yes|no|please|i (?:am|feel|think|want|need|like)|i'm|you)\b|你好|谢谢"
        ),
        _words(
            "hi hello hey yo thank thanks ok okay good sure yes no please i i'm you"
        ),
    ),
)  # fmt: skip

_TELLING = frozenset().union(*(cue.words | cue.triggers for cue in _CUES))
"""All words that tell anything: of most messages a few."""

_CODE_LINE = re.compile(
    r"[ \t]*(?:def|class|import|from|#include|public|private|static|function|const|let|var|func|fn|"
    r"package|using|SELECT|INSERT|UPDATE|CREATE TABLE)\b.*[;:{(]"
)
_TAG = re.compile(r"</?(?:div|span|html|script|body)\b")
_RETURN = re.compile(r"\breturn [\w.]+;")

_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "couple": 2, "three": 3, "few": 3, "four": 4,
    "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
_UNIT_TOKENS = {"word": 4 / 3, "sentence": 25.0, "paragraph": 100.0, "line": 12.0, "page": 650.0}
"""Rules of thumb for English."""
_UNITS = frozenset(f"{unit}{plural}" for unit in _UNIT_TOKENS for plural in ("", "s"))
_ASKED = re.compile(
    r"\b(\d[\d,]{0,8}|" + "|".join(_NUMBERS) + r")(?: of)?[ -]+(?:short |long |brief |full )?"
    r"(" + "|".join(_UNIT_TOKENS) + r")s?\b"
)
YES_OR_NO_TOKENS = 3


class Message:
    """The head and tail of a message, in lower case, and the words there."""

    def __init__(self, text: str) -> None:
        self.window = _window(text)
        self.lowered = self.window.lower()
        self.words: list[str] = _WORD.findall(self.lowered)
        self._set = frozenset(self.words)
        self._ascii = self.lowered.isascii()

    def question_type(self) -> QuestionType:
        """The kind of answer it asks for; UNKNOWN without a cue."""
        if not self.window:
            return QuestionType.UNKNOWN
        telling = self._set & _TELLING
        for cue in _CUES:
            if not telling.isdisjoint(cue.words):
                return cue.kind
            # Chinese has no spaces: its cues are no words, and are sought wherever it might be.
            if not (self._ascii and telling.isdisjoint(cue.triggers)) and cue.pattern.search(
                self.lowered
            ):
                return cue.kind
        return QuestionType.CODE if _code_lines(self.window) else QuestionType.UNKNOWN

    def asked_tokens(self) -> int:
        """Length of the answer it asks for: the longest named; 0 where none is."""
        tokens = 0.0
        if not self._set.isdisjoint(_UNITS):
            for number, unit in _ASKED.findall(self.lowered):
                if number in ("a", "an") and unit in ("word", "line"):
                    continue  # talks of one, rather than asking for one
                count = _NUMBERS.get(number) or int(number.replace(",", ""))
                tokens = max(tokens, count * _UNIT_TOKENS[unit])
        if tokens == 0.0 and "yes or no" in self.lowered:
            return YES_OR_NO_TOKENS
        return min(round(tokens), MOST_ASKED_TOKENS)


def looks_like_code(text: str) -> bool:
    """Whether a text holds source code: telling lines at its head or tail."""
    return _code_lines(_window(text))


def has_fence(text: str) -> bool:
    """Whether a fenced block begins or ends there."""
    if len(text) <= 2 * FENCE_WINDOW:
        return "```" in text
    return text.find("```", 0, FENCE_WINDOW) >= 0 or text.find("```", len(text) - FENCE_WINDOW) >= 0


def _code_lines(window: str) -> bool:
    return (
        any(map(_CODE_LINE.match, window.split("\n")))
        or ("<" in window and _TAG.search(window) is not None)
        or (";" in window and _RETURN.search(window) is not None)
        or "=> {" in window
        or "Traceback (most recent" in window
    )


def _window(text: str) -> str:
    return text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]}\n{text[-WINDOW:]}"
