"""What a search knows already, in a file: so that it can be interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson


@dataclass
class Notebook:
    """Scores that are known, so that an interrupted run goes on where it was: the search itself is
    repeated, and asks the same questions.

    Args:
        path: JSON lines, appended to; None: nothing is kept.
        key: of the task (policy, scenarios, protocol): lines of other tasks are ignored.
    """

    path: Path | None
    key: str
    scores: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):  # cut short when a run was killed
            with self.path.open("ab") as file:
                file.write(b"\n")
        for line in data.splitlines():
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if entry["task"] == self.key:
                self.scores[entry["options"]] = entry["score"]

    def know(self, options: str, score: float) -> None:
        """Write a score down."""
        self.scores[options] = score
        if self.path is not None:
            entry = {"task": self.key, "options": options, "score": score}
            with self.path.open("ab") as file:
                file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
