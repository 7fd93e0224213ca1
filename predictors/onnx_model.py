"""A trained model as the router runs it: an ONNX graph that knows what it is.

Training writes into the graph's metadata what it expects and what it should answer
(`agents/fit/onnx_meta.py`); loading checks all of it, so that a model that loads is the model that
was trained, fed with the features it was trained on. Metadata keys, all strings:

====================== ==============================================================================
``steersman.kind``     what it predicts: `length`, `latency`, `policy`
``steersman.version``  which artifact, for logs and metrics
``steersman.features`` JSON list of the names of its inputs' columns
``steersman.lower``    JSON list: lowest value of each feature in training
``steersman.upper``    JSON list: highest value of each feature in training
``steersman.parity``   JSON ``{"inputs": {name: rows}, "outputs": [rows, ...]}``: what the model it was
                       exported from answers; the graph must answer the same at load; one whose
                       inputs all have a first dimension of 1 is asked row by row
====================== ==============================================================================

Further `steersman.*` keys are kept in `ModelMetadata.extra`. Only onnxruntime is needed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from steersman.traces.errors import ArtifactError

PREFIX = "steersman."
REQUIRED_KEYS = ("kind", "version", "features", "lower", "upper", "parity")
PARITY_RTOL = 1e-3
PARITY_ATOL = 1e-4
"""The graph computes in float32, what it was exported from may not."""

_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class ModelMetadata:
    """What the trained graph says of itself."""

    kind: str
    version: str
    features: tuple[str, ...]
    lower: NDArray[np.float64]
    """(len(features),): lowest value seen in training."""
    upper: NDArray[np.float64]
    extra: Mapping[str, str]
    """Other `steersman.*` entries, without the prefix."""


class OnnxModel:
    """An ONNX graph that has passed every check. Immutable; `run` is safe from any thread.

    To reload, load another instance (from any thread) and replace the reference.
    """

    def __init__(
        self, session: ort.InferenceSession, metadata: ModelMetadata, source: str, data: bytes
    ) -> None:
        self._session = session
        self._data = data
        self.metadata = metadata
        self.source = source
        """Where it came from, for messages."""

    @classmethod
    def load(
        cls, path: str | Path, *, kind: str, features: tuple[str, ...], sha256: str | None = None
    ) -> OnnxModel:
        """Read, check and warm up a model file.

        Args:
            path: the `.onnx` file.
            kind: what it must predict.
            features: the names and order of the input columns the caller will feed.
            sha256: the checksum the file must have, in hexadecimal; None to accept any.

        Raises:
            ArtifactError: the file is missing, corrupt, not the expected file, of another kind, made
                for other features, or does not compute what it was trained to.
        """
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise ArtifactError(
                f"{path}: no such model file; train one with 'steersman train'"
            ) from None
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read ({error.strerror}); check the file") from None
        if sha256 is not None:
            check_sha256(data, sha256, source=str(path))
        return cls.parse(data, kind=kind, features=features, source=str(path))

    @classmethod
    def parse(cls, data: bytes, *, kind: str, features: tuple[str, ...], source: str) -> OnnxModel:
        """`load` for a model already in memory; `source` names it in errors."""
        session, entries = _open(data, source)
        metadata = _read_metadata(entries, source)
        _check_interface(metadata, kind, features, source)
        model = cls(session, metadata, source, data)
        model._check_parity(entries[PREFIX + "parity"])
        return model

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Outputs of the graph in its order. Inputs must have the graph's types and shapes.

        Finite at load does not promise finite for every input: callers on the decision path check.
        """
        outputs: list[NDArray[Any]] = self._session.run(None, dict(inputs))
        return outputs

    def __reduce__(self) -> tuple[Any, ...]:
        """A session cannot be sent to another process; the graph can."""
        return _received, (self._data, self.metadata, self.source)

    def _check_parity(self, text: str) -> None:
        recorded = _json(text, "parity", self.source)
        try:
            types = {node.name: _TYPES[node.type] for node in self._session.get_inputs()}
            inputs = {name: np.array(recorded["inputs"][name], dtype=types[name]) for name in types}
            expected = [np.array(rows, dtype=np.float64) for rows in recorded["outputs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(self.source, f"its parity rows do not fit its inputs ({error!r})") from None
        if not expected or not all(rows.size for rows in expected):
            raise _broken(self.source, "it has no parity rows to check it with")
        try:
            actual = self._answers(inputs)
        except Exception as error:
            raise _broken(self.source, f"it fails on its parity rows ({_line(error)})") from None
        if len(actual) != len(expected):
            raise _broken(self.source, f"it has {len(actual)} outputs, not {len(expected)}")
        for mine, theirs in zip(actual, expected, strict=True):
            self._check_output(np.asarray(mine, dtype=np.float64), theirs)

    def _answers(self, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Outputs for parity rows; a graph for one row at a time is asked one by one."""
        if any(node.shape[:1] != [1] for node in self._session.get_inputs()):
            return self.run(inputs)
        count = min(len(rows) for rows in inputs.values())
        each = [self.run({name: rows[i : i + 1] for name, rows in inputs.items()}) for i in range(count)]
        return [np.concatenate(parts) for parts in zip(*each, strict=True)]

    def _check_output(self, actual: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
        if actual.shape != expected.shape:
            raise _broken(self.source, f"its output has shape {actual.shape}, not {expected.shape}")
        if not np.isfinite(actual).all():
            raise _broken(self.source, "it answers with values that are not finite")
        error = np.abs(actual - expected)
        if not (error <= PARITY_ATOL + PARITY_RTOL * np.abs(expected)).all():
            worst = float(np.nanmax(error))
            raise _broken(self.source, f"it does not answer as when it was trained (off by {worst:.3g})")


def check_sha256(data: bytes, expected: str, *, source: str) -> None:
    """Raises ArtifactError unless `data` has this SHA-256, in hexadecimal."""
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected.lower():
        raise ArtifactError(
            f"{source}: SHA-256 is {actual[:12]}…, expected {expected[:12]}…; "
            "the file was changed or damaged: write it anew"
        )


def session_options() -> ort.SessionOptions:
    """One thread, no spinning, no chatter: many small calls beside an event loop."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _open(data: bytes, source: str) -> tuple[ort.InferenceSession, dict[str, str]]:
    try:
        session = ort.InferenceSession(data, session_options(), providers=["CPUExecutionProvider"])
        return session, session.get_modelmeta().custom_metadata_map
    except Exception as error:  # onnxruntime's errors share no base class but this one
        raise ArtifactError(
            f"{source}: not a readable ONNX model ({_line(error)}); train or export it anew"
        ) from None


def _received(data: bytes, metadata: ModelMetadata, source: str) -> OnnxModel:
    """A model that another process has checked."""
    return OnnxModel(_open(data, source)[0], metadata, source, data)


def _read_metadata(entries: Mapping[str, str], source: str) -> ModelMetadata:
    missing = [key for key in REQUIRED_KEYS if PREFIX + key not in entries]
    if missing:
        raise ArtifactError(
            f"{source}: metadata '{PREFIX}{missing[0]}' is missing; export the model with Steersman"
        )
    features = _json(entries[PREFIX + "features"], "features", source)
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        raise _broken(source, f"metadata '{PREFIX}features' is not a list of names")
    known = {PREFIX + key for key in REQUIRED_KEYS}
    return ModelMetadata(
        kind=entries[PREFIX + "kind"],
        version=entries[PREFIX + "version"],
        features=tuple(features),
        lower=_bounds(entries, "lower", len(features), source),
        upper=_bounds(entries, "upper", len(features), source),
        extra={
            key.removeprefix(PREFIX): value
            for key, value in entries.items()
            if key.startswith(PREFIX) and key not in known
        },
    )


def _bounds(entries: Mapping[str, str], key: str, count: int, source: str) -> NDArray[np.float64]:
    values = _json(entries[PREFIX + key], key, source)
    try:
        bounds = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        bounds = np.empty(0)
    if bounds.shape != (count,) or not np.isfinite(bounds).all():
        raise _broken(source, f"metadata '{PREFIX}{key}' does not list {count} finite numbers")
    return bounds


def _check_interface(metadata: ModelMetadata, kind: str, features: tuple[str, ...], source: str) -> None:
    if metadata.kind != kind:
        raise ArtifactError(
            f"{source}: is a model of kind '{metadata.kind}', expected '{kind}'; give the right file"
        )
    if metadata.features != features:
        raise ArtifactError(
            f"{source}: was trained on other features ({_difference(metadata.features, features)}); "
            "retrain with this version"
        )


def _difference(trained: tuple[str, ...], fed: tuple[str, ...]) -> str:
    gone = [name for name in trained if name not in fed]
    new = [name for name in fed if name not in trained]
    parts = []
    if gone:
        parts.append(f"it wants {', '.join(gone)}")
    if new:
        parts.append(f"it does not know {', '.join(new)}")
    if not parts:
        first = next((b for a, b in zip(trained, fed, strict=False) if a != b), "")
        parts.append(f"in another order, from '{first}' on")
    return "; ".join(parts)


def _json(text: str, key: str, source: str) -> Any:
    refuse: Callable[[str], Any] = _refuse_constant
    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError:
        raise _broken(source, f"metadata '{PREFIX}{key}' is not valid JSON") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _broken(source: str, reason: str) -> ArtifactError:
    return ArtifactError(f"{source}: {reason}; train or export it anew")


def _line(error: Exception) -> str:
    """An onnxruntime message in one short line."""
    text = " ".join(str(error).split())
    return text.rpartition(" : ")[2][:160] or type(error).__name__
