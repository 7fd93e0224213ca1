"""How many tokens a prompt has (SPEC A1): by a real tokenizer if one is configured, else by an estimate.

The estimate is bytes per token, one ratio per model, learned from the prompt tokens that backends
report in `usage`. Bytes of UTF-8 rather than characters: English has one byte a character and about
four characters a token, Chinese three bytes a character and about one and a half characters a token, so
that one ratio serves both far better.
"""

from __future__ import annotations

import importlib
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from steersman.traces.errors import ConfigError

if TYPE_CHECKING:
    from steersman.predictors.text import TextFeatures

DEFAULT_BYTES_PER_TOKEN = 4.0
MESSAGE_TOKENS = 4
"""Tokens a chat template adds to each message: role and separators."""
IMAGE_TOKENS = 576
"""Tokens of an image: 24 x 24 patches, as LLaVA-1.5 has."""

LEAST_BYTES = 64
"""Shorter prompts teach nothing: the chat template outweighs their text."""
LEAST_RATIO, MOST_RATIO = 0.5, 16.0
"""Bounds on an observed ratio: one absurd `usage` must not poison the estimate."""
LEAST_WEIGHT = 0.02
"""Weight of a new observation in the long run: about the last fifty count."""
MOST_STEP = 0.5
"""Bound on one observation's error in log ratio, once the first few have set the level."""
PRIOR_OBSERVATIONS = 2.0
MOST_MODELS = 1_000

MOST_CHARACTERS = 4_096
"""Tokenized of one prompt: a few milliseconds, in which the router does nothing else. Of a longer one,
patched together from many, the count is then 2 to 5 % off in the median."""
PIECES = 8


class TokenCounter(Protocol):
    """Counts the tokens of a prompt before any engine has seen it."""

    def count(self, model: str, text: TextFeatures) -> int:
        """Tokens of the whole prompt, chat template included; at least 1."""
        ...

    def learn(self, model: str, text: TextFeatures, prompt_tokens: int) -> None:
        """An engine reported `prompt_tokens` for this prompt. Never raises, whatever the number."""
        ...


class CalibratedCounter:
    """Estimates from the size, with a ratio per model that follows what backends report.

    Memory is bounded: the `most_models` most recently taught models are remembered. Not thread-safe.
    """

    def __init__(
        self, *, bytes_per_token: float = DEFAULT_BYTES_PER_TOKEN, most_models: int = MOST_MODELS
    ) -> None:
        self._default = bytes_per_token
        self._most_models = most_models
        # Model → (log of bytes per token, number of observations).
        self._learned: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def bytes_per_token(self, model: str) -> float:
        """The present ratio for a model."""
        known = self._learned.get(model)
        return self._default if known is None else math.exp(known[0])

    def count(self, model: str, text: TextFeatures) -> int:
        """Estimated tokens of the prompt; exact for the part given as token ids."""
        tokens = text.size_bytes / self.bytes_per_token(model) + _fixed_tokens(text)
        return max(round(tokens), 1)

    def learn(self, model: str, text: TextFeatures, prompt_tokens: int) -> None:
        """Move the model's ratio towards what was observed.

        The first observations count evenly with a weak prior, later ones with a constant weight and a
        bounded error. Prompts with images or token ids, and very short ones, are passed over.
        """
        if text.size_bytes < LEAST_BYTES or text.images or text.token_ids or prompt_tokens < 1:
            return
        text_tokens = max(prompt_tokens - _fixed_tokens(text), 1)
        observed = math.log(min(max(text.size_bytes / text_tokens, LEAST_RATIO), MOST_RATIO))
        log_ratio, seen = self._learned.get(model, (math.log(self._default), 0))
        error = observed - log_ratio
        if seen >= 3:
            error = min(max(error, -MOST_STEP), MOST_STEP)
        weight = max(1.0 / (PRIOR_OBSERVATIONS + seen), LEAST_WEIGHT)
        self._learned[model] = (log_ratio + weight * error, seen + 1)
        self._learned.move_to_end(model)
        if len(self._learned) > self._most_models:
            self._learned.popitem(last=False)


class TokenizerCounter:
    """Counts with a real tokenizer, read from a `tokenizer.json`. Learns nothing.

    Of a prompt of more than `most_characters` only `PIECES` evenly spread pieces are tokenized, and the
    rest is taken to be like them, so that no prompt holds up the others.

    Raises:
        ConfigError: the `tokenizers` package is not installed, or the file is not a tokenizer.
    """

    def __init__(self, path: str | Path, *, most_characters: int = MOST_CHARACTERS) -> None:
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise ConfigError(
                f"tokenizer '{path}': the 'tokenizers' package is not installed; "
                "install it, or remove the key to use the estimate"
            ) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        except Exception as error:  # the package raises bare Exception
            reason = " ".join(str(error).split())
            raise ConfigError(f"tokenizer '{path}': cannot be loaded ({reason})") from None
        self._most_characters = most_characters

    def count(self, model: str, text: TextFeatures) -> int:  # noqa: ARG002
        """Tokens of the text, plus what the chat template adds."""
        characters = sum(map(len, text.pieces)) + max(len(text.pieces) - 1, 0)
        if characters <= self._most_characters:
            tokens = float(self._tokens("\n".join(text.pieces)))
        else:
            samples = list(_samples(text.pieces, self._most_characters))
            tokens = sum(map(self._tokens, samples)) * characters / sum(map(len, samples))
        return max(round(tokens + _fixed_tokens(text)), 1)

    def _tokens(self, text: str) -> int:
        sound = text.encode("utf-8", "replace").decode()
        return len(self._tokenizer.encode(sound, add_special_tokens=False).ids)

    def learn(self, model: str, text: TextFeatures, prompt_tokens: int) -> None:
        """Nothing to learn."""


def _samples(texts: Sequence[str], most_characters: int) -> Iterator[str]:
    """Evenly spread pieces of the texts, laid end to end, `most_characters` together."""
    ends = list(accumulate(map(len, texts)))
    length = most_characters // PIECES
    for piece in range(PIECES):
        start = piece * (ends[-1] - length) // (PIECES - 1)
        place, left = bisect_right(ends, start), length
        while left > 0:
            within = max(start - (ends[place] - len(texts[place])), 0)
            part = texts[place][within : within + left]
            yield part
            left -= len(part)
            place += 1


def _fixed_tokens(text: TextFeatures) -> int:
    template = MESSAGE_TOKENS * text.turns if text.chat else 0
    return template + IMAGE_TOKENS * text.images + text.token_ids
