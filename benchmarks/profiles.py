"""Write `configs/hardware/` from measured kernel times, and say how well each profile fits them.

::

    python benchmarks/profiles.py            # write the files and the table of errors in SOURCE.md
    python benchmarks/profiles.py --check    # only say whether they are what this would write

The lines are those of `data/kernel_times/` (`SOURCE.md` there). Where a line misses the decode times by
more than `LINE_LIMIT`, the profile gets `decode_base_by_batch_s` instead: a mixture of experts reads
more of its weights the more sequences ask for them. `decode_base_s` is then the level that fits best at
`LOADED` sequences and more, for those who estimate with a line.

To the kernel times comes what a server adds, the same for all profiles: `agents/fidelity/servers.py`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steersman.agents.fidelity.servers import BUNDLED

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data" / "kernel_times"
PROFILES = ROOT / "configs" / "hardware"
LINE_LIMIT = 0.1
"""Mean error of the decode times from which on a line is not credible."""
LOADED = 8
"""Sequences from which on estimates should be right, where one level must do for all batches."""
TABLE_START, TABLE_END = "<!-- errors -->\n", "<!-- end of errors -->\n"

Key = tuple[str, str, int]
LEFT_OUT: dict[Key, str] = {
    ("llama-3.1-70b", "l40s", 8): "slower than on four from 32 sequences on",
    ("qwen2.5-72b", "l40s", 8): "slower than on four from 32 sequences on",
}


@dataclass(frozen=True)
class Gpu:
    """What the kernel tables do not say of a GPU; `configs/hardware/SOURCE.md` says where it is from."""

    short: str
    name: str
    nominal_gb: int
    factor: float
    price: float


GPUS = {
    "a100_sxm": Gpu("a100", "a100-80gb", 80, 0.70, 1.80),
    "h100_sxm": Gpu("h100", "h100-80gb", 80, 1.00, 3.00),
    "h200_sxm": Gpu("h200", "h200-141gb", 141, 1.06, 3.80),
    "l40s": Gpu("l40s", "l40s-48gb", 48, 0.56, 1.00),
}


@dataclass(frozen=True)
class Fit:
    """Coefficients in milliseconds."""

    base: float
    seq: float
    context: float
    prefill: tuple[float, float, float]
    curve: tuple[tuple[int, float], ...] = ()

    def predict(self, kind: str, batch: int, tokens: int, context: int) -> float:
        """An iteration of the grid by the formula of `HardwareProfile`, without host overhead."""
        fixed, per_token, per_token2 = self.prefill
        if kind == "decode":
            return self._weights(batch) + self._decode(batch, context)
        if kind == "prefill":
            compute = fixed + per_token * batch * tokens + per_token2 * batch * tokens**2
            return max(self._weights(0), compute)
        if kind == "prefill_cached_prefix":
            reach = tokens + 2 * context
            return max(self._weights(0), fixed + per_token * tokens + per_token2 * tokens * reach)
        compute = fixed + per_token * tokens + per_token2 * tokens**2
        return self._decode(batch, context) + max(self._weights(batch), compute)

    def _decode(self, batch: int, context: int) -> float:
        return self.seq * batch + self.context * batch * context

    def _weights(self, batch: int) -> float:
        if not self.curve:
            return self.base
        batches, times = zip(*self.curve, strict=True)
        return float(np.interp(batch, batches, times))


Row = tuple[str, int, int, int, float]


def read_grid() -> dict[Key, list[Row]]:
    """(kind, batch, new tokens, context, milliseconds) by model, system and tensor parallelism."""
    grid: dict[Key, list[Row]] = defaultdict(list)
    with gzip.open(DATA / "iteration_latency_grid_vllm.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["system"], int(row["tp"]))
            sizes = int(row["batch"]), int(row["new_tokens_per_seq"]), int(row["context"])
            grid[key].append((row["kind"], *sizes, float(row["latency_ms"])))
    return grid


def read_summary() -> dict[Key, dict[str, str]]:
    """Rows of the summary of those that fit their memory."""
    with (DATA / "model_gpu_summary_and_linear_fit.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(r["model"], r["system"], int(r["tp"])): r for r in rows if r["fits_bf16"] == "True"}


def fit(summary: dict[str, str], rows: list[Row]) -> Fit:
    """The line, or the curve where the line does not fit."""
    columns = ("dec_a_ms", "dec_b_ms_per_seq", "dec_c_ms_per_ctx_token")
    base, seq, context = (float(summary[column]) for column in columns)
    columns = ("pre_a_ms", "pre_b_ms_per_token", "pre_c_ms_per_token2")
    fixed, per_token, per_token2 = (float(summary[column]) for column in columns)
    prefill = fixed, per_token, per_token2
    line = Fit(base, seq, context, prefill)
    if errors(line, rows)["decode"][0] <= LINE_LIMIT:
        return line
    return _curve(rows, prefill)


def _curve(rows: list[Row], prefill: tuple[float, float, float]) -> Fit:
    """Decode times as level(batch) + c * sum(context), by relative least squares.

    Of the level, what still grows between the two largest batches, where all weights are read, is the
    cost of a sequence; the rest is the time to read the weights.
    """
    decode = [(batch, batch * context, ms) for kind, batch, _, context, ms in rows if kind == "decode"]
    batches = sorted({batch for batch, _, _ in decode})
    design = np.array(
        [[total / ms, *((batch == b) / ms for b in batches)] for batch, total, ms in decode]
    )
    context, *levels = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)[0].tolist()
    seq = max(levels[-1] - levels[-2], 0.0) / (batches[-1] - batches[-2])
    reads = np.maximum.accumulate(np.array(levels) - seq * np.array(batches))
    # The level that fits a replica with some load best, as a share of the times.
    loaded = [row for row in decode if row[0] >= LOADED]
    weights = np.array([1.0 / ms for _, _, ms in loaded])
    others = np.array([ms - seq * batch - context * total for batch, total, ms in loaded])
    base = float((weights**2 * others).sum() / (weights**2).sum())
    curve = tuple((batch, float(f"{ms:.6g}")) for batch, ms in zip(batches, reads.tolist(), strict=True))
    return Fit(base, seq, context, prefill, curve)


def errors(fitted: Fit, rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Mean and 95th percentile of |fit / grid - 1| by kind of iteration."""
    found: dict[str, list[float]] = defaultdict(list)
    for kind, batch, tokens, context, ms in rows:
        found[kind].append(abs(fitted.predict(kind, batch, tokens, context) / ms - 1.0))
    return {kind: (float(np.mean(each)), float(np.quantile(each, 0.95))) for kind, each in found.items()}


def profile_name(key: Key) -> str:
    """For example `h100-tp4-llama-3.1-70b`."""
    model, system, parallel = key
    degree = f"tp{parallel}-" if parallel > 1 else ""
    return f"{GPUS[system].short}-{degree}{model}"


def profile_text(key: Key, summary: dict[str, str], fitted: Fit, rows: list[Row]) -> str:
    """The YAML file."""
    model, system, parallel = key
    gpu = GPUS[system]
    off = errors(fitted, rows)
    fixed, per_token, per_token2 = (BUNDLED.prefill_factor * ms for ms in fitted.prefill)
    base_of = (
        "of 8 sequences and more, for estimates"
        if fitted.curve
        else "one read of the weights, per iteration"
    )
    memory_gib = parallel * gpu.nominal_gb * 1e9 / 2**30
    kind = "fit by batch" if fitted.curve else "linear fit"
    lines = [
        f"# {model} in BF16 on {parallel} x {gpu.name}. Times in seconds; how they add up: "
        "`HardwareProfile` in traces/schema.py.",
        f"name: {profile_name(key)}",
        f"gpu: {gpu.name}",
        f"model: {model}  # file in configs/models",
        f"tensor_parallel: {parallel}  # GPUs that share the model",
        f"gpu_memory_gib: {memory_gib:.1f}  # {parallel} x {gpu.nominal_gb} GB",
        f"# Fit of measured kernel times: decode within {_percent(off['decode'][0])}, "
        f"prefill within {_percent(off['prefill'][0])} on average,",
        "# and what measured servers add (both: SOURCE.md).",
        f"decode_base_s: {_seconds(fitted.base)}  # {base_of}",
        f"decode_seq_s: {_seconds(fitted.seq + 1e3 * BUNDLED.host_seq_s)}  # per decoding sequence: "
        f"{_seconds(fitted.seq)} of kernels, {BUNDLED.host_seq_s:g} of the host",
        f"decode_context_s: {_seconds(fitted.context)}  # per context token of what decodes",
    ]
    if fitted.curve:
        lines.append(
            "decode_base_by_batch_s:  # decoding sequences, and the read of the weights they ask for"
        )
        lines += [f"  - [{batch}, {_seconds(ms)}]" for batch, ms in fitted.curve]
    lines += [
        f"# Prefill: kernels, times {BUNDLED.prefill_factor:g} as on measured servers.",
        f"prefill_base_s: {_seconds(fixed)}  # per iteration that prefills",
        f"prefill_token_s: {_seconds(per_token)}  # per prefilled token",
        f"prefill_token2_s: {_seconds(per_token2)}  # per squared prefilled token",
        f"host_overhead_s: {BUNDLED.host_s:g}  # fitted to measured vLLM servers: scheduling, sampling",
        f"kv_capacity_tokens: {summary['kv_capacity_tokens_at_0p9_util']}  # at 90 % memory utilisation",
        "block_tokens: 16  # vLLM's default",
        "max_num_seqs: 256  # vLLM's default",
        "max_batched_tokens: 2048  # vLLM's default for chunked prefill",
        f"hardware_factor: {gpu.factor:.2f}  # relative speed, H100 is 1 (derivation: SOURCE.md)",
        f"cost_per_hour: {parallel * gpu.price:.2f}  # US dollars, assumption: {gpu.price:.2f} a GPU; "
        "put your own price here",
        f"source: aiconfigurator 0.12.0, vLLM kernel tables ({system}, tp {parallel}), {kind}",
    ]
    return "\n".join(lines) + "\n"


def error_table(fits: dict[Key, tuple[Fit, list[Row]]]) -> str:
    """Markdown: mean error (95th percentile) by kind of iteration."""
    kinds = ("decode", "prefill", "prefill_cached_prefix", "mixed_prefill+decode")
    lines = [
        "| profile | decode | prefill | after a cached prefix | mixed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key, (fitted, rows) in sorted(fits.items(), key=lambda item: profile_name(item[0])):
        off = errors(fitted, rows)
        cells = " | ".join(f"{off[kind][0]:.1%} ({off[kind][1]:.0%})" for kind in kinds)
        lines.append(f"| {profile_name(key)}{' (by batch)' if fitted.curve else ''} | {cells} |")
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{max(share, 0.01):.0%}"


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.6g}"


def outputs() -> tuple[dict[Path, str], list[dict[str, Any]]]:
    """What the files should say, and the errors as rows."""
    grid = read_grid()
    fits: dict[Key, tuple[Fit, list[Row]]] = {}
    wanted: dict[Path, str] = {}
    figures: list[dict[str, Any]] = []
    for key, summary in read_summary().items():
        if key in LEFT_OUT:
            continue
        fitted = fit(summary, grid[key])
        fits[key] = fitted, grid[key]
        name = profile_name(key)
        wanted[PROFILES / f"{name}.yaml"] = profile_text(key, summary, fitted, grid[key])
        for kind, (mean, p95) in errors(fitted, grid[key]).items():
            note = f"mean over the grid, p95 {p95:.3f}"
            row = {"name": f"profile.{name}.{kind}", "value": mean, "lo": None, "hi": None}
            figures.append(row | {"unit": "fraction", "note": note})
    source = PROFILES / "SOURCE.md"
    before, rest = source.read_text(encoding="utf-8").split(TABLE_START)
    after = rest.split(TABLE_END)[1]
    wanted[source] = before + TABLE_START + error_table(fits) + TABLE_END + after
    return wanted, figures


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    parser.add_argument("--json", type=Path, help="write the errors as rows")
    options = parser.parse_args()
    wanted, figures = outputs()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    different = [
        p for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text
    ]
    for path in different:
        print(path.relative_to(ROOT))
        if not options.check:
            path.write_text(wanted[path], encoding="utf-8")
    print(
        f"{len(wanted) - 1} profiles, {len(different)} files {'differ' if options.check else 'written'}"
    )
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
