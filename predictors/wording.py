"""What the words of a question say of the length of its answer, learned from the answers (SPEC A2).

A linear model of log(output tokens / what is usual for the tenant) over the words at both ends of the
last user message, hashed into `BUCKETS` weights (the hashing trick: Weinberger et al. 2009) and learned
answer by answer, with a step of its own for each weight (AdaGrad: Duchi, Hazan & Singer 2011). It begins
knowing nothing, learns from a service's own traffic, and keeps no text: words become numbers as soon as
they are read, and many words share one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from zlib import crc32

BUCKETS = 2**14
STEP = 0.05
LEAST_WEIGHT = 0.01
"""Of a new answer in the mean: about the last hundred count."""
MOST_ERROR = 1.0
"""Of log length: no single answer teaches more than this."""
MOST_SCORE = 3.0
FIRST_SQUARES = 1e-3


def word_buckets(words: Iterable[str]) -> tuple[int, ...]:
    """Distinct buckets of the words, in any order."""
    return tuple({crc32(word.encode("utf-8", "surrogatepass")) % BUCKETS for word in words})


class Wording:
    """The weights. 256 KiB; not thread-safe."""

    def __init__(self) -> None:
        self._weights = array("d", bytes(8 * BUCKETS))
        self._squares = array("d", [FIRST_SQUARES]) * BUCKETS
        self._mean = 0.0
        self._seen = 0

    def score(self, buckets: tuple[int, ...]) -> float:
        """Expected log of the answer's length over the usual; 0: the words say nothing."""
        if not buckets:
            return 0.0
        weights = self._weights
        total = sum([weights[bucket] for bucket in buckets]) / math.sqrt(len(buckets))
        return min(max(total, -MOST_SCORE), MOST_SCORE)

    def learn(self, buckets: tuple[int, ...], output_tokens: float, usual_tokens: float) -> None:
        """An answer ended of its own accord.

        Args:
            usual_tokens: the tenant's median when the request came in; unknown below 1, which teaches
                nothing.
        """
        if not buckets or output_tokens < 1.0 or usual_tokens < 1.0:
            return
        actual = math.log(output_tokens / usual_tokens)
        # The mean takes what answers have in common (a mean is no median): it is not the words'.
        self._seen += 1
        self._mean += max(1.0 / self._seen, LEAST_WEIGHT) * (actual - self._mean)
        error = actual - self._mean - self.score(buckets)
        error = min(max(error, -MOST_ERROR), MOST_ERROR)
        gradient = error / math.sqrt(len(buckets))
        weights, squares = self._weights, self._squares
        for bucket in buckets:
            squares[bucket] += gradient * gradient
            weights[bucket] += STEP * gradient / math.sqrt(squares[bucket])
