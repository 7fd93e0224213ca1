"""How many tokens an emulated answer has: what the client fixed, or a draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from steersman.env.emulator.protocol import bad_request
from steersman.env.emulator.settings import Lengths

XARG = "output_tokens"
"""Key of the request field `vllm_xargs` that fixes the length, beside the header."""


class AnswerLengths:
    """Decides in this order: the header, `vllm_xargs`, `ignore_eos`, a draw from a log-normal."""

    def __init__(self, lengths: Lengths, seed: int) -> None:
        self._mu = float(np.log(lengths.median_tokens))
        self._sigma = lengths.sigma
        self._rng = np.random.default_rng(seed)

    def choose(self, header: int | None, body: dict[str, Any], room: int) -> tuple[int, str]:
        """Output tokens (1 to `room`) and the finish reason.

        Args:
            header: the count the client fixed by header, if any.
            body: the request's JSON.
            room: tokens allowed by the client's limit and the context window.

        Raises:
            ApiError: 400, `vllm_xargs` holds no proper count.
        """
        wanted = header or _from_xargs(body)
        if wanted is None and body.get("ignore_eos"):
            wanted = room + 1
        if wanted is None:
            wanted = max(round(float(self._rng.lognormal(self._mu, self._sigma))), 1)
        return (wanted, "stop") if wanted <= room else (room, "length")


def _from_xargs(body: dict[str, Any]) -> int | None:
    xargs = body.get("vllm_xargs")
    value = xargs.get(XARG) if isinstance(xargs, dict) else None
    if value is None:
        return None
    try:
        tokens = int(value)
    except (TypeError, ValueError):
        tokens = 0
    if tokens < 1:
        raise bad_request(
            f"vllm_xargs.{XARG}: {value!r} is not a positive number of tokens", "vllm_xargs"
        )
    return tokens
