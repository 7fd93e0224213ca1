"""A challenger with a fault that no evaluation before its export can see: a sign was lost.

What was trained and judged is sound; the file that is served prefers what it should avoid. It loads,
since its recorded answers are its own.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np

from steersman import __version__
from steersman.agents.learned.served import MASKED
from steersman.predictors.bundle import POLICY_FILE, Bundle, write_bundle
from steersman.predictors.onnx_model import PREFIX


def with_sign_error(bundle: Bundle, directory: Path, *, now: datetime) -> Bundle:
    """The bundle with its policy turned round, written to another directory.

    Args:
        bundle: with a policy.
        now: for its version.
    """
    contents = {**bundle.contents, POLICY_FILE: turned(bundle.contents[POLICY_FILE])}
    return write_bundle(
        directory,
        contents,
        version=f"{now:%Y%m%d-%H%M%S}-sign-error",
        code_version=__version__,
        created=now,
        trained_on={**bundle.manifest.trained_on, "parent": bundle.version},
    )


def turned(policy: bytes) -> bytes:
    """A policy graph whose scores have the other sign, where they matter."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(policy)
    output = model.graph.output[0].name
    straight = f"{output}_straight"
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == output:
                node.output[i] = straight
    masked = numpy_helper.from_array(np.array(MASKED, dtype=np.float32), "turned_masked")
    model.graph.initializer.append(masked)
    model.graph.node.extend(
        [
            helper.make_node("Neg", [straight], ["turned_scores"]),
            helper.make_node("Where", ["mask", "turned_scores", "turned_masked"], [output]),
        ]
    )
    for entry in model.metadata_props:
        if entry.key == f"{PREFIX}parity":
            entry.value = _turned_parity(entry.value)
        elif entry.key == f"{PREFIX}version":
            entry.value = f"{entry.value}-turned"
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _turned_parity(text: str) -> str:
    recorded = json.loads(text)
    mask = np.array(recorded["inputs"]["mask"], dtype=np.bool_)[:, None, :]
    scores = np.array(recorded["outputs"][0])
    recorded["outputs"] = [np.where(mask, -scores, MASKED).tolist()]
    return json.dumps(recorded, allow_nan=False, separators=(",", ":"))
