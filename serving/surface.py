"""The paths of the OpenAI surface that are passed to the replicas, and what each asks of an engine.

What is forwarded is decided by this table alone. Bodies are not validated here: the engine that serves
the model knows best which fields it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from steersman.serving.tap import ResponsesTap, StreamTap


class Work(StrEnum):
    """What a request costs an engine."""

    GENERATE = "generate"
    """A prefill and many decode steps."""
    ENCODE = "encode"
    """One forward pass over the prompt: as much as a completion of one token."""
    TEXT = "text"
    """None on the accelerator."""


@dataclass(frozen=True, slots=True)
class ApiPath:
    """One path, asked with POST and a JSON object that names the model."""

    path: str
    work: Work
    tap: type[StreamTap] = StreamTap
    """How its streams are read."""
    stored: bool = False
    """Whether an engine may keep the answer: asked twice, it would keep two."""


SURFACE: tuple[ApiPath, ...] = (
    ApiPath("/v1/chat/completions", Work.GENERATE),
    ApiPath("/v1/completions", Work.GENERATE),
    ApiPath("/v1/responses", Work.GENERATE, ResponsesTap, stored=True),
    ApiPath("/v1/embeddings", Work.ENCODE),
    # Of vLLM, SGLang and Text Embeddings Inference; Jina's and Cohere's clients ask for the first two.
    ApiPath("/v1/rerank", Work.ENCODE),
    ApiPath("/v2/rerank", Work.ENCODE),
    ApiPath("/rerank", Work.ENCODE),
    ApiPath("/v1/score", Work.ENCODE),
    ApiPath("/score", Work.ENCODE),
    ApiPath("/pooling", Work.ENCODE),
    ApiPath("/classify", Work.ENCODE),
    ApiPath("/tokenize", Work.TEXT),
    ApiPath("/detokenize", Work.TEXT),
)
