"""What kind of answer a prompt asks for, by cheap cues in its wording (SPEC A1).

Not understanding: a few regular expressions over the head and tail of the last user message, tried in
order of how telling they are. Features of a forest, which learns how far to trust them.
"""

from __future__ import annotations

import re

from steersman.traces.schema import QuestionType

WINDOW = 256
"""Characters looked at, at each end of a text."""

_CODE = re.compile(
    r"```|^[ \t]*(?:def|class|import|from|#include|public|private|static|function|const|let|var|func|fn|"
    r"package|using|SELECT|INSERT|UPDATE|CREATE TABLE)\b[^\n]*[;:{(]|"
    r"</?(?:div|span|html|script|body)\b|\breturn [\w.]+;|=> ?\{|\bTraceback \(most recent",
    re.MULTILINE,
)

_CUES: tuple[tuple[QuestionType, re.Pattern[str]], ...] = (
    (
        QuestionType.TRANSLATION,
        re.compile(
            r"\btranslat(?:e|ion)\b|\btradu(?:is|ire|ce|cir|zir)\w*|\bübersetz\w+|翻译|翻譯|翻訳|переве(?:ди|сти)"
        ),
    ),
    (
        QuestionType.CODE,
        re.compile(
            r"\b(?:python|javascript|typescript|java|c\+\+|rust|golang|sql|bash|html|css|regex|react|"
            r"docker(?:file)?|kubernetes|api endpoint|unit tests?|stack ?trace|"
            r"compil(?:e|er|ation) error|refactor|debug|segfault)\b|"
            r"\b(?:write|implement|fix|create)\b[^.?!\n]{0,60}"
            r"\b(?:function|class|script|program|code|query|method|algorithm|module)\b"
        ),
    ),
    (
        QuestionType.EXTRACTION,
        re.compile(
            r"\b(?:extract|summari[sz]e|summary|tl;?dr|classify|categori[sz]e|label each|paraphrase|"
            r"proofread|rewrite the|keywords? (?:from|of)|named entit|"
            r"(?:according to|based on) the (?:text|passage|context|document))|总结|摘要|提取"
        ),
    ),
    (
        QuestionType.CREATIVE,
        re.compile(
            r"\b(?:write|compose|draft|tell|create|make up|invent)\b[^.?!\n]{0,60}"
            r"\b(?:story|poem|song|lyrics|essay|novel|haiku|sonnet|joke|script|dialogue|scene|letter|"
            r"blog(?: post)?|article|speech|slogan|tagline|limerick|rap)\b|"
            r"\b(?:brainstorm|imagine|role-?play)\b|写一[首篇个]"
        ),
    ),
    (
        QuestionType.REASONING,
        re.compile(
            r"\b(?:prove|proof|derive|solve|calculate|compute|evaluate the|step[- ]by[- ]step|"
            r"reason(?:ing)?|how many|how much|probability|equation|integral|theorem|"
            r"logic(?:al)? puzzle|compare|analy[sz]e|pros and cons|trade-?offs?|explain why|"
            r"why (?:is|are|do|does|did|would|should))\b|证明|计算|为什么"
        ),
    ),
    (
        QuestionType.FACTUAL,
        re.compile(
            r"^\W*(?:who|what|when|where|which|whose|is|are|was|were|do|does|did|can|how|define|name|list|"
            r"tell me about|explain|describe|give me)\b|是什么|谁是|哪里"
        ),
    ),
    (
        QuestionType.CHAT,
        re.compile(
            r"^\W*(?:hi|hello|hey|yo|thanks?|thank you|ok(?:ay)?|good (?:morning|evening|night)|sure|"
            r"yes|no|please|i (?:am|feel|think|want|need|like)|i'm|you)\b|你好|谢谢"
        ),
    ),
)


def question_type(message: str) -> QuestionType:
    """The kind of answer that the last user message asks for; UNKNOWN without a cue."""
    if not message:
        return QuestionType.UNKNOWN
    window = _window(message)
    lowered = window.lower()
    for kind, pattern in _CUES:
        if pattern.search(lowered):
            return kind
    return QuestionType.CODE if _CODE.search(window) else QuestionType.UNKNOWN


def looks_like_code(text: str) -> bool:
    """Whether a text holds source code: a fence anywhere, or telling lines at its head or tail."""
    return "```" in text or _CODE.search(_window(text)) is not None


def _window(text: str) -> str:
    return text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]}\n{text[-WINDOW:]}"
