"""The policy that ships with Steersman, so that a router routes by a learned policy from the start.

`shipped/` beside this module is a bundle like any other (`predictors/bundle.py`), of a policy alone:
output lengths then come from the tenants' own history, latencies from the hardware profiles. Its model
card (`shipped/MODEL_CARD.md`) says what it was trained on, how to train it again, how good it is, and
where it ends.
"""

from __future__ import annotations

from pathlib import Path

from steersman.predictors.bundle import POLICY_FILE, Bundle, load_bundle

DIRECTORY = Path(__file__).with_suffix("")
MODEL_CARD = "MODEL_CARD.md"


def shipped_graph() -> bytes:
    """The policy's ONNX graph.

    Raises:
        ArtifactError: as `load_shipped`.
    """
    return load_shipped().contents[POLICY_FILE]


def load_shipped() -> Bundle:
    """The shipped bundle.

    Raises:
        ArtifactError: it was damaged, or belongs to another version.
    """
    return load_bundle(DIRECTORY)
