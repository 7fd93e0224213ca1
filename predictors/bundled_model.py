"""A trained predictor: one graph of a bundle."""

from __future__ import annotations

from typing import ClassVar, Self

from steersman.predictors.bundle import Bundle
from steersman.predictors.onnx_model import OnnxModel


class BundledModel:
    """What every trained predictor can do; subclasses predict.

    Args:
        model: the graph, of this kind and with these features.
    """

    kind: ClassVar[str]
    """As in the graph's metadata."""
    file: ClassVar[str]
    """The graph's name in a bundle."""
    features: ClassVar[tuple[str, ...]]
    """Columns of the graph's input."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self | None:
        """The bundle's model; None if it has none.

        Raises:
            ArtifactError: it is there and wrong; see `OnnxModel.load`.
        """
        model = bundle.model(cls.file, kind=cls.kind, features=cls.features)
        return None if model is None else cls(model)

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "") -> Self:
        """A model in memory; raises ArtifactError as `OnnxModel.load` does."""
        source = source or f"{cls.kind} model"
        return cls(OnnxModel.parse(data, kind=cls.kind, features=cls.features, source=source))

    @property
    def version(self) -> str:
        """Which artifact."""
        return self._model.metadata.version

    @property
    def model(self) -> OnnxModel:
        """The graph and its metadata."""
        return self._model
