"""What an evaluation of predictors leaves in MLflow: figures, and how well each was calibrated."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from steersman.agents.evaluate.predictions import Quality
from steersman.agents.registry import RunRecord
from steersman.agents.report.calibration import calibration_files
from steersman.traces.trace import Trace


def predictions_record(
    found: Sequence[Quality], parameters: Mapping[str, Any], trace: Trace, *, bundle: str
) -> RunRecord:
    """The record of one evaluation.

    Metrics are named `<quantity>.<figure>.<predictor>.<where>`; plots lie in a folder per predictor.

    Args:
        found: by `judge_length` and `judge_latency`.
        parameters: what was asked for.
        trace: whose evaluation part was judged on.
        bundle: version of the bundle judged; empty for none.
    """
    metrics: dict[str, float] = {}
    coverage: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    files = {"predictions.json": json.dumps([row for each in found for row in each.rows()]).encode()}
    for each in found:
        place = re.sub(r"[^\w.-]+", "_", each.where).strip("_")
        for figure in ("mdape", "coverage_p90", "coverage_p90_frozen", "pinball"):
            value = getattr(each, figure)
            if value is not None:
                metrics[f"{each.quantity}.{figure}.{each.predictor}.{place}"] = value
        if each.quantity != "output":
            coverage[each.predictor][each.quantity][each.where.rpartition(" ")[2]] = each.coverage_p90
        if each.calibration is not None:
            drawn = calibration_files([each.calibration], {})
            files |= {f"{each.predictor}/{place}/{name}": svg for name, svg in drawn.items()}
    for predictor, shares in coverage.items():
        files |= {f"{predictor}/{name}": svg for name, svg in calibration_files([], shares).items()}
    tags = {"trace": trace.name, "fingerprint": trace.fingerprint(), "bundle": bundle}
    return RunRecord(parameters=dict(parameters), metrics=metrics, tags=tags, files=files)
