"""What every command shares: the console, JSON answers, progress bars.

Answers go to stdout; progress, notes and errors go to stderr, so that `--json` output can be piped.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console()
"""For answers."""
notes = Console(stderr=True)
"""For everything else."""


def print_json(value: Any) -> None:
    """Print one JSON document (numpy values and dataclasses included) to stdout."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    console.file.write(orjson.dumps(value, option=options).decode() + "\n")


def moment(unix_s: float) -> str:
    """A moment, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}"


def command_line() -> str:
    """What was typed, to be copied from a report."""
    return shlex.join(["steersman", *sys.argv[1:]])


def progress() -> Progress:
    """A progress bar on stderr: what, how far, how long, how much longer."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=notes,
    )


def end_with_stdin() -> None:
    """End at once when standard input does: the router that started this is gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
