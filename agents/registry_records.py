"""What the registry remembers: of a run, of a version of the model, of changes of the champion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from steersman.agents.evidence import Evidence

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EVIDENCE = "evidence."
"""Begins the tags of a model version that hold its evidence."""
CHANGE = "champion."
"""Begins the tags of the registered model that hold the champion's changes."""


@dataclass(frozen=True)
class RunRecord:
    """Everything a training run leaves behind."""

    parameters: Mapping[str, Any]
    """Settings, flat; long values are cut by MLflow's limit, the full ones go to `settings.json`."""
    metrics: Mapping[str, float]
    """Final figures. Values that are not finite are left out."""
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Metric name → (step, value) along the training."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """For example code version, trace and its fingerprint."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further artifacts: relative path → contents (LightGBM texts, plots, tables)."""


@dataclass(frozen=True)
class ModelRecord:
    """A version of the registered model, and where it comes from."""

    version: str
    bundle_version: str
    aliases: tuple[str, ...]
    created_unix_s: float
    run_id: str
    run_name: str
    lineage: Mapping[str, str]
    """The run's tags: code version, trace, fingerprint, parent and whatever else was recorded."""
    evidence: tuple[Evidence, ...]
    """The oldest first."""


@dataclass(frozen=True)
class Change:
    """One change of the champion."""

    version: str
    previous: str
    """The champion before; empty for none."""
    made_unix_s: float
    by: str
    reason: str

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Change:
        """The inverse of `to_json`."""
        values = json.loads(text)
        return Change(**{f.name: values[f.name] for f in fields(Change)})


@dataclass(frozen=True)
class Registered:
    """Where a run went."""

    run_id: str
    version: str
    """Version of the registered model, `1`, `2`, ..."""
    bundle_version: str


def tag_key(prefix: str, made_unix_s: float, text: str) -> str:
    """Of a tag: sorts by time; the digest keeps apart what was made in the same millisecond."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{prefix}{int(1000.0 * made_unix_s):015d}.{digest}"


def evidence_in(tags: Mapping[str, str]) -> tuple[Evidence, ...]:
    """Of a model version's tags, the oldest first."""
    return tuple(Evidence.from_json(tags[key]) for key in sorted(tags) if key.startswith(EVIDENCE))


def record_of(
    client: MlflowClient, found: ModelVersion, aliases: Mapping[str, list[str]]
) -> ModelRecord:
    """Of what MLflow says of a version; `aliases`: version → names."""
    run = client.get_run(str(found.run_id))
    lineage = {key: str(tag) for key, tag in run.data.tags.items() if not key.startswith("mlflow.")}
    return ModelRecord(
        version=str(found.version),
        bundle_version=str(found.tags.get("bundle_version", "")),
        aliases=tuple(sorted(aliases.get(str(found.version), ()))),
        created_unix_s=float(found.creation_timestamp) / 1000.0,
        run_id=str(found.run_id),
        run_name=str(run.info.run_name),
        lineage=lineage,
        evidence=evidence_in(found.tags),
    )
