"""What a search knows already, in a file: so that it can be interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from steersman.agents.evaluate.kept_lines import KeptLines


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

    _lines: KeptLines | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self._lines = KeptLines(self.path, "notebook")
        for entry in self._lines.entries:
            if entry["task"] == self.key:
                self.scores[entry["options"]] = entry["score"]

    def know(self, options: str, score: float) -> None:
        """Write a score down."""
        self.scores[options] = score
        if self._lines is not None:
            self._lines.add({"task": self.key, "options": options, "score": score})
