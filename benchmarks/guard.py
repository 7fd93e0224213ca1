"""What the guard is worth when the learned policy goes wrong (SPEC B3).

::

    python benchmarks/guard.py [--quick] [--json FILE] [--bundle DIR] [--wrong DIR] [--light DIR]

A policy that was trained on `mixed`, sound and damaged in every way listed in `FAULTS`, with and without
the guard, on several scenarios at 80, 95 and 105 % load, against P2C with common random numbers:
`guarded.FAULT` and `alone.FAULT` are J over P2C's J in all cells together, `worst` the worst cell, and
`trips.FAULT.REASON` the share of decisions that the guard took from the policy. Aim: with the guard,
never more than a few per cent worse than P2C.

Policies that are not given are trained first: `--bundle` on `mixed`, `--wrong` on `demo` (another model,
other GPUs), `--light` on `mixed` at 20 to 50 % load, so that traffic leaves the ranges it knows.
A file with changed weights is refused when it is loaded; here the weights change afterwards.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

from steersman.agents.evaluate.factories import Contestant, policy_factory
from steersman.agents.evaluate.run import Protocol, evaluate
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.guard import Clock, FallbackReason, Guard
from steersman.agents.learned.served import KIND, POLICY_FEATURES, LearnedPolicy
from steersman.agents.policy import Policy
from steersman.env.scenario import load_scenario
from steersman.predictors.bundle import POLICY_FILE
from steersman.predictors.onnx_model import OnnxModel, session_options
from steersman.traces.errors import ArtifactError
from steersman.traces.scenario import Scenario, Staleness
from steersman.traces.schema import Observation

Weights = dict[str, NDArray[Any]]
Row = dict[str, Any]

SCENARIOS, QUICK_SCENARIOS = ("homogeneous", "mixed", "prefix", "stale"), ("mixed", "prefix")
LOADS = (0.8, 0.95, 1.05)
BASELINE = "p2c"
OLD = Staleness(scrape_interval_s=20.0, jitter=0.5)
"""Metrics that are mostly older than the guard allows."""


@dataclass(frozen=True)
class Models:
    """Where the policies are."""

    sound: Path
    wrong: Path
    light: Path


class Hog(LearnedPolicy):
    """One replica gets everything while it may be chosen, whatever was learned."""

    def head_scores(self, observation: Observation) -> NDArray[np.float32]:
        """The first that is allowed, and all heads agree."""
        heads = super().head_scores(observation)
        order = -10.0 * np.arange(heads.shape[1], dtype=np.float32)
        return np.where(observation.mask, order, heads)


class Inverted(LearnedPolicy):
    """It prefers what it should avoid, and all its heads agree."""

    def head_scores(self, observation: Observation) -> NDArray[np.float32]:
        """The opposite of what was learned."""
        heads = super().head_scores(observation)
        return np.where(observation.mask, -heads, heads)


class AtRandom(LearnedPolicy):
    """Anybody, and all heads agree."""

    def head_scores(self, observation: Observation) -> NDArray[np.float32]:
        """Drawn anew each time."""
        heads = super().head_scores(observation)
        drawn = self._rng.normal(scale=10.0, size=heads.shape[1])
        return np.where(observation.mask, drawn, heads).astype(np.float32)


class Misplaced(LearnedPolicy):
    """Every score is another replica's: a list in another order."""

    def head_scores(self, observation: Observation) -> NDArray[np.float32]:
        """Those of the next one."""
        heads = np.roll(super().head_scores(observation), 1, axis=1)
        return np.where(observation.mask, heads, -1e9).astype(np.float32)


def noise(weights: Weights, rng: np.random.Generator) -> Weights:
    """Noise of ten times their size on all weights."""
    return {
        name: value + rng.normal(0.0, 10.0 * value.std(), value.shape).astype(np.float32)
        for name, value in weights.items()
    }


def flipped(weights: Weights, rng: np.random.Generator) -> Weights:
    """Half of all signs change."""
    return {
        name: value * rng.choice(np.array([-1.0, 1.0], dtype=np.float32), value.shape)
        for name, value in weights.items()
    }


def broken(weights: Weights, rng: np.random.Generator) -> Weights:
    """One weight is not a number."""
    name = sorted(weights)[int(rng.integers(len(weights)))]
    value = weights[name].copy()
    value.flat[rng.integers(value.size)] = np.nan
    return weights | {name: value}


def damaged(
    path: Path, damage: Callable[[Weights, np.random.Generator], Weights], seed: int
) -> OnnxModel:
    """The policy after its weights changed in memory; it is checked that as a file it is refused."""
    graph = onnx.load(path)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    weights = {name: value for name, value in values.items() if value.ndim == 2}
    changed = damage(weights, np.random.default_rng(seed))
    for tensor in graph.graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(numpy_helper.from_array(changed[tensor.name], tensor.name))
    data = graph.SerializeToString()
    try:
        OnnxModel.parse(data, kind=KIND, features=POLICY_FEATURES, source="damaged")
    except ArtifactError:
        session = ort.InferenceSession(data, session_options(), providers=["CPUExecutionProvider"])
        return OnnxModel(session, loaded(path).metadata, "damaged", data)
    raise SystemExit("a file with changed weights was not refused")


def loaded(path: Path) -> OnnxModel:
    """A policy as it was trained."""
    return OnnxModel.load(path, kind=KIND, features=POLICY_FEATURES)


Fault = Callable[[Models, int], tuple[type[LearnedPolicy], OnnxModel]]
"""Makes a policy that is wrong in some way, from a seed."""
FAULTS: dict[str, Fault] = {
    "none": lambda models, _: (LearnedPolicy, loaded(models.sound)),
    "noise": lambda models, seed: (LearnedPolicy, damaged(models.sound, noise, seed)),
    "flipped_signs": lambda models, seed: (LearnedPolicy, damaged(models.sound, flipped, seed)),
    "not_a_number": lambda models, seed: (LearnedPolicy, damaged(models.sound, broken, seed)),
    "at_random": lambda models, _: (AtRandom, loaded(models.sound)),
    "misplaced": lambda models, _: (Misplaced, loaded(models.sound)),
    "inverted": lambda models, _: (Inverted, loaded(models.sound)),
    "one_replica": lambda models, _: (Hog, loaded(models.sound)),
    "wrong_cluster": lambda models, _: (LearnedPolicy, loaded(models.wrong)),
    "light_load_only": lambda models, _: (LearnedPolicy, loaded(models.light)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching: two scenarios, short runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    for name in ("bundle", "wrong", "light"):
        parser.add_argument(f"--{name}", type=Path, help="a bundle; default: one is trained")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        policies = [
            (given or trained(Path(scratch) / name, scenario, load, quick=options.quick)) / POLICY_FILE
            for name, given, scenario, load in (
                ("sound", options.bundle, "mixed", (0.4, 1.5)),
                ("wrong", options.wrong, "demo", (0.4, 1.5)),
                ("light", options.light, "mixed", (0.2, 0.5)),
            )
        ]
        rows = list(figures(Models(*policies), quick=options.quick))
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.3f}, {row['hi']:.3f}]"
        print(f"{row['name']:<48}{row['value']:>8.3f}{interval}  {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def trained(work: Path, scenario: str, load: tuple[float, float], *, quick: bool) -> Path:
    """A policy trained for a short while; returns its bundle."""
    work.mkdir()
    settings = {
        "scenario": scenario,
        "policy": {"budget_s": 30 if quick else 120, "ppo_share": 0.0, "practice": {"load": load}},
        "evaluation": {"loads": [0.8], "seeds": 2, "requests": 200, "warmup_s": 10},
    }
    config = work / "training.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    command = [sys.executable, "-m", "steersman", "train", "policy", "--json"]
    command += ["--config", str(config), "--out", str(work), "--mlruns", str(work / "mlruns")]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(json.loads(answer.stdout)["bundle"]["directory"])


def figures(models: Models, *, quick: bool) -> Iterator[Row]:
    """All faults, and metrics that are too old."""
    protocol = Protocol(
        loads=LOADS,
        seeds=(0, 1) if quick else (0, 1, 2, 3, 4),
        requests=1_000 if quick else 3_000,
        window_s=0.0,
        warmup_s=10.0 if quick else 60.0,
    )
    scenarios = [load_scenario(name) for name in (QUICK_SCENARIOS if quick else SCENARIOS)]
    yield from compared(models, FAULTS, scenarios, protocol)
    old = [replace(each, staleness=OLD) for each in scenarios]
    yield from compared(models, {"old_metrics": FAULTS["none"]}, old, protocol)


def compared(
    models: Models, faults: dict[str, Fault], scenarios: list[Scenario], protocol: Protocol
) -> Iterator[Row]:
    """Every fault with and without the guard, over P2C."""
    guards: dict[str, list[Guard]] = {name: [] for name in faults}
    contestants: dict[str, Contestant] = {BASELINE: policy_factory(BASELINE)}
    for name, fault in faults.items():
        contestants[f"guarded.{name}"] = partial(guarded, models, fault, guards[name])
        contestants[f"alone.{name}"] = partial(alone, models, fault)
    table = evaluate(contestants, scenarios, protocol)
    for name in faults:
        yield from ratios(table, f"guarded.{name}")
        yield from ratios(table, f"alone.{name}")
        yield from trips(name, guards[name])


def alone(models: Models, fault: Fault, seed: int, clock: Clock) -> Policy:
    """The faulty policy, and nobody who watches it."""
    del clock
    kind, model = fault(models, seed)
    return kind(model, np.random.default_rng(seed))


def guarded(models: Models, fault: Fault, made: list[Guard], seed: int, clock: Clock) -> Policy:
    """The faulty policy behind the guard, which joins those that were made."""
    guard = Guard.make(alone(models, fault, seed, clock), seed=seed, clock=clock)
    made.append(guard)
    return guard


def ratios(table: EvaluationTable, policy: str) -> Iterator[Row]:
    """J over P2C's in all cells and in the worst."""
    ratio = table.ratio(policy, BASELINE)
    yield row(policy, ratio.value, "ratio", "J over P2C's, all cells", ratio.lo, ratio.hi)
    by_cell = {cell: table.ratio(policy, BASELINE, cells=[cell]) for cell in table.cells}
    worst = max(by_cell, key=lambda cell: by_cell[cell].value)
    ratio = by_cell[worst]
    yield row(f"{policy}.worst", ratio.value, "ratio", f"in {worst}", ratio.lo, ratio.hi)


def trips(fault: str, guards: Sequence[Guard]) -> Iterator[Row]:
    """Why the guards stepped in, and how often."""
    decisions = sum(guard.decisions for guard in guards)
    for reason in FallbackReason:
        count = sum(guard.fallbacks[reason] for guard in guards)
        if count:
            yield row(f"trips.{fault}.{reason}", count / decisions, "share", "of all decisions")
    closings = sum(guard.closings for guard in guards)
    yield row(f"latched.{fault}", float(closings), "times", f"in {len(guards)} runs")


def row(
    name: str, value: float, unit: str, note: str, lo: float | None = None, hi: float | None = None
) -> Row:
    """One figure."""
    return {"name": name, "value": value, "lo": lo, "hi": hi, "unit": unit, "note": note}


if __name__ == "__main__":
    main()
