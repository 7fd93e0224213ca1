"""Steersman's own router on loopback, for benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import router_peers
import yaml

PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b")
"""Of the backends, in turns."""
PROGRAM = ("-m", "steersman")


def serve_command(
    path: Path,
    port: int,
    backends: Sequence[int],
    *,
    program: Sequence[str] = PROGRAM,
    **sections: object,
) -> list[str]:
    """Write a configuration, and tell the command that serves it.

    Args:
        path: of the configuration.
        backends: ports on loopback.
        program: arguments of Python that start the command-line tool.
        sections: of the configuration, besides port and backends.
    """
    replicas = [
        {"url": url, "profile": PROFILES[i % len(PROFILES)]}
        for i, url in enumerate(router_peers.urls(backends))
    ]
    path.write_text(yaml.safe_dump({"port": port, "backends": replicas, **sections}))
    return [sys.executable, *program, "serve", "--config", str(path)]
