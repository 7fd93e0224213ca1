"""What fitting a predictor leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from steersman.agents.fit.calibration import Calibration

Progress = Callable[[float, str], None]
"""Called with the share done, 0 to 1, and what is being done."""


@dataclass(frozen=True)
class FittedModel:
    """A fitted predictor, ready to be served, and the evidence for it."""

    kind: str
    """`length` or `latency`."""
    onnx: bytes
    """With its metadata; `predictors/onnx_model.py` loads it."""
    text: Mapping[str, str]
    """LightGBM's own text of each forest, by its name."""
    metrics: Mapping[str, float]
    """Measured on held-out data; the names are documented in docs/predictors.md."""
    calibration: tuple[Calibration, ...] = field(default=(), compare=False)
    """Predicted against actual on the same data, where there was any."""

    def save(self, directory: str | Path) -> None:
        """Write `<kind>.onnx`, `<kind>-<forest>.txt` and `<kind>.metrics.json` into a directory."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.kind}.onnx").write_bytes(self.onnx)
        for name, text in self.text.items():
            (directory / f"{self.kind}-{name}.txt").write_text(text, encoding="utf-8")
        metrics = json.dumps(dict(self.metrics), indent=2, sort_keys=True) + "\n"
        (directory / f"{self.kind}.metrics.json").write_text(metrics, encoding="utf-8")


def version_of(text: Mapping[str, str], *constants: float) -> str:
    """A version that names the content: the same forests and constants have the same version."""
    digest = sha256()
    for name, forest in sorted(text.items()):
        digest.update(f"{name}\0{forest}\0".encode())
    digest.update(repr(constants).encode())
    return digest.hexdigest()[:12]


def silent(share: float, stage: str) -> None:
    """A progress callback that says nothing."""
