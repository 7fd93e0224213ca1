"""HTTP headers between a load client and the emulated backend, in lower case.

By them a load client tells the emulated backend what a real model would decide; a router passes
them on like any header it does not know, and a real engine ignores them.
"""

from __future__ import annotations

EMULATED_INPUT_TOKENS = "x-emulated-input-tokens"
"""Tokens of the prompt, where the sender knows better than an estimate from the text."""
EMULATED_OUTPUT_TOKENS = "x-emulated-output-tokens"
"""Tokens the model produces before it ends of its own accord; `max_tokens` may cut it shorter."""
