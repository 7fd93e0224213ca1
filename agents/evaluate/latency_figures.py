"""How well TTFT and TPOT are foreseen (EVALUATION, "Prediction"): the figures of one cluster and seed.

Beside the served model stand the analytic estimate and llm-d's model, fitted on the same samples and
measured on the same unseen runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import TRAIN_SHARE, fit_rows, simulate
from steersman.agents.fit.latency_quality import TARGETS, quality
from steersman.agents.fit.length import fit_length
from steersman.agents.fit.llmd import llmd_predictions
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.length import LengthModel

METRICS = {
    "mdape_analytic": "mdape.analytic",
    "mdape": "mdape",
    "coverage_p90_frozen": "p90_coverage_frozen",
    "coverage_p90": "p90_coverage",
}
"""Names in a model's metrics, and in the figures."""


def latency_figures(
    cluster: str, seed: int, *, runs: int, decisions: int
) -> tuple[dict[str, float], FittedModel]:
    """Fit and measure on one cluster's kind of pool.

    Returns:
        `ttft.mdape`, `ttft.mdape.load95`, `ttft.p90_coverage` (with the width that serving learns),
        `ttft.p90_coverage_frozen` (of the model alone), `ttft.mdape.analytic`, `llmd.ttft.mdape` and so
        on; and the fitted model.
    """
    scenario = load_scenario(cluster)
    trace = load_source(scenario)
    # Latency is measured on the last part: the lengths it is told must not come from there.
    past = trace.split((TRAIN_SHARE, 1.0 - TRAIN_SHARE))[0]
    length = LengthModel.from_bytes(fit_length(past, seed=seed).onnx)
    samples, groups, held = simulate(
        scenario, trace, seed=seed, length=length, runs=runs, decisions=decisions
    )
    fitted = fit_rows(samples, groups, seed=seed, held=held)
    theirs = quality(llmd_predictions(samples, held.rows, seed=seed), held)
    figures = named(fitted.metrics)
    figures |= {f"llmd.{name}": value for name, value in named(theirs).items()}
    return figures, fitted


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """`ttft_mdape_load95` as `ttft.mdape.load95`; what is neither error nor coverage is left out."""
    pattern = re.compile(rf"({'|'.join(TARGETS)})_({'|'.join(METRICS)})(?:_(\w+))?")
    found = {}
    for name, value in metrics.items():
        if match := pattern.fullmatch(name):
            target, metric, part = match.groups()
            found[".".join(filter(None, (target, METRICS[metric], part)))] = value
    return found
