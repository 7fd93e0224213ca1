"""A bundle's graphs as MLflow models: ONNX flavour, no pickles, with signature and input example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, Bundle
from steersman.predictors.onnx_model import PREFIX

MAIN_FIRST = (POLICY_FILE, LENGTH_FILE, LATENCY_FILE)
"""The graphs of a bundle; the first that is there stands for the whole in the model registry."""


def save_models(bundle: Bundle, directory: Path) -> list[str]:
    """Write each graph as an MLflow model into `directory/<policy|length|latency>`.

    Returns:
        The names of these directories, the main one first.
    """
    names = [name for name in MAIN_FIRST if name in bundle.contents]
    for name in names:
        _save(bundle.contents[name], directory / Path(name).stem)
    return [Path(name).stem for name in names]


def _save(data: bytes, directory: Path) -> None:
    import mlflow.onnx
    import onnx
    import onnxruntime

    graph = onnx.load_model_from_string(data)
    mlflow.onnx.save_model(
        graph,
        str(directory),
        signature=_signature(graph),
        input_example=_example(graph),
        metadata={
            entry.key: entry.value
            for entry in graph.metadata_props
            if entry.key in {f"{PREFIX}kind", f"{PREFIX}version", f"{PREFIX}features"}
        },
        # Named here, so that MLflow does not load the model in another process to find out.
        pip_requirements=[f"onnx=={onnx.__version__}", f"onnxruntime=={onnxruntime.__version__}"],
    )


def _signature(graph: Any) -> Any:
    """MLflow's signature from the graph's own inputs and outputs."""
    import onnx
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    def schema(values: Any) -> Schema:
        specs: list[ColSpec | TensorSpec] = []
        for value in values:
            tensor = value.type.tensor_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            specs.append(TensorSpec(dtype, shape, value.name))
        return Schema(specs)

    return ModelSignature(inputs=schema(graph.graph.input), outputs=schema(graph.graph.output))


def _example(graph: Any) -> dict[str, Any]:
    """The graph's parity rows: inputs whose answers are known."""
    import onnx

    parity = next(entry.value for entry in graph.metadata_props if entry.key == f"{PREFIX}parity")
    rows = json.loads(parity)["inputs"]
    return {
        value.name: np.array(
            rows[value.name], onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in graph.graph.input
    }
