"""The card of a version in the registry: what it is, what it learned from, how good it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steersman.agents.registry_records import RunRecord
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, Bundle

_PARTS = {
    POLICY_FILE: "routes requests: a score for every candidate, any number of them",
    LENGTH_FILE: "foresees the output length of a request: p50, p90 and a rank",
    LATENCY_FILE: "foresees TTFT and TPOT of a request on a replica: p50 and p90",
}
_LIMITS = """\
- Learned from the traffic and the cluster above. What lies outside the ranges seen there is told by the
  guard, and the fallback decides.
- It knows no text, and nothing of events: failures and drains reach a policy through the mask alone.
- Figures are of the day they were made. What has been found out since stands with the version as
  evidence (`steersman models`)."""


def model_card(bundle: Bundle, record: RunRecord) -> str:
    """Markdown.

    Args:
        bundle: its files, and what its manifest says of its making.
        record: of the run that made it; figures that are not finite are left out.
    """
    manifest = bundle.manifest
    files = [f"- `{name}`: {_PARTS.get(name, 'part of the bundle')}" for name in sorted(bundle.contents)]
    figures = [f"| {name} | {v:.4g} |" for name, v in sorted(record.metrics.items()) if math.isfinite(v)]
    return "\n".join(
        [
            f"# Model card: bundle `{bundle.version}`",
            "",
            f"Made {manifest.created:%Y-%m-%d %H:%M} UTC by Steersman {manifest.code_version}.",
            "",
            *files,
            "",
            "## Training",
            "",
            *_listed(manifest.trained_on),
            *_listed(record.tags),
            "",
            "All settings are in `settings.json` beside this card.",
            "",
            "## Figures",
            "",
            *(("| figure | value |", "| --- | --- |", *figures) if figures else ("None were made.",)),
            "",
            "## Limits",
            "",
            _LIMITS,
            "",
        ]
    )


def _listed(values: Mapping[str, Any]) -> list[str]:
    return [f"- {key}: {value}" for key, value in values.items()]
