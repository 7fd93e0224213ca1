"""What a replay measured: one row per request, and the figures people compare."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.traces.errors import ConfigError
from steersman.traces.schema import Status

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

QUANTILES = (0.5, 0.9, 0.99)
LATE_S = 0.05
"""A client whose 99th percentile of lateness is above this did not offer the load it was asked to."""
SUFFIXES = (".parquet", ".jsonl")


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """n requests in trace order; arrays of shape (n,), NaN where a time does not exist.

    Times are the client's: TTFT and E2E count from the moment the request was sent. A request that the
    client sent late is late in `lateness_s`, not in these.
    """

    name: str
    """Of the trace."""
    url: str
    model: str
    wall_s: float
    """From the start to the end of the last request."""
    request_id: tuple[str, ...]
    scheduled_s: Float64
    """When it should have been sent, from the start; a later turn: its parent's end and think time."""
    lateness_s: Float64
    """How much later the client sent it; NaN if it never did."""
    ttft_s: Float64
    """To the first token; of an answer that was not streamed, to its end."""
    tpot_s: Float64
    """(E2E - TTFT) / (output tokens - 1); 0 for a single token; NaN if not streamed."""
    e2e_s: Float64
    input_tokens: Int64
    """The trace's."""
    output_tokens: Int64
    """The server's `usage`, or the number of chunks."""
    wanted_output_tokens: Int64
    """The trace's; -1 unknown."""
    ttft_slo_s: Float64
    tpot_slo_s: Float64
    status: tuple[Status, ...]
    http_status: Int64
    """0 where no status line came."""
    began: NDArray[np.bool_]
    """Whether a token arrived, so that a router could not have retried it elsewhere."""
    replica: tuple[str, ...]
    """Who answered, as the router says; empty where nobody says."""
    fallback: tuple[str, ...]
    """Why the router's guard overruled the learned policy; empty where it did not."""
    error: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """(n,): which ended well."""
        return np.array([status is Status.OK for status in self.status], dtype=np.bool_)

    @property
    def slo_met(self) -> NDArray[np.bool_]:
        """(n,): ended well, and within both objectives. TPOT of an answer not streamed is not judged."""
        tpot = np.nan_to_num(self.tpot_s)
        return self.ok & (self.ttft_s <= self.ttft_slo_s) & (tpot <= self.tpot_slo_s)

    def summary(self) -> dict[str, Any]:
        """Plain numbers and strings: what tables, reports and `--json` show. Times in seconds."""
        ok, met = self.ok, self.slo_met
        sent = self.lateness_s[~np.isnan(self.lateness_s)]
        late_p99 = float(np.quantile(sent, 0.99)) if len(sent) else 0.0
        answered = Counter(name for name in self.replica if name)
        total = sum(answered.values())
        return {
            "trace": self.name,
            "url": self.url,
            "model": self.model,
            "requests": len(self),
            "wall_s": self.wall_s,
            "statuses": dict(Counter(str(status) for status in self.status)),
            "failed_before_first_token": int(np.sum(~ok & ~self.began)),
            "errors": dict(Counter(error for error in self.error if error).most_common(5)),
            "ttft_s": _quantiles(self.ttft_s[ok]),
            "tpot_s": _quantiles(self.tpot_s[ok]),
            "e2e_s": _quantiles(self.e2e_s[ok]),
            "output_tokens_per_s": float(self.output_tokens.sum() / self.wall_s) if self.wall_s else 0.0,
            "slo_attainment": float(met.mean()) if len(self) else 0.0,
            "goodput_rps": float(met.sum() / self.wall_s) if self.wall_s else 0.0,
            "share": {name: count / total for name, count in sorted(answered.items())},
            "fallbacks": dict(Counter(reason for reason in self.fallback if reason)),
            "client_lateness_p99_s": late_p99,
            "client_kept_up": late_p99 <= LATE_S,
        }

    def save(self, path: str | Path) -> None:
        """Write the table, as Parquet or JSON lines by the file's suffix.

        Raises:
            ConfigError: another suffix, or the file cannot be written.
        """
        path = check_output_path(path)
        columns = self._columns()
        try:
            if path.suffix == ".parquet":
                import pyarrow as pa
                import pyarrow.parquet as pq

                pq.write_table(pa.table(columns), path)
            else:
                with path.open("wb") as out:
                    for values in zip(*columns.values(), strict=True):
                        out.write(orjson.dumps(dict(zip(columns, values, strict=True))) + b"\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error}); choose another place") from None

    def _columns(self) -> dict[str, list[Any]]:
        table: dict[str, list[Any]] = {}
        for name in self.__slots__[self.__slots__.index("request_id") :]:
            values = getattr(self, name)
            table[name] = values.tolist() if isinstance(values, np.ndarray) else [*map(_plain, values)]
        table["slo_met"] = self.slo_met.tolist()
        return table


def check_output_path(path: str | Path) -> Path:
    """The path, if a result can be saved there; meant to be asked before the replay, not after.

    Raises:
        ConfigError: unknown suffix, or no such folder.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{path}: cannot save as '{path.suffix}'; end the name in {' or '.join(SUFFIXES)}"
        )
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"{path}: no folder {path.resolve().parent}; create it first")
    return path


def _plain(value: str) -> str:
    return str(value)


def _quantiles(values: Float64) -> dict[str, float | None]:
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    quantiles = np.quantile(values, QUANTILES).tolist()
    return {"mean": float(values.mean()), **dict(zip(("p50", "p90", "p99"), quantiles, strict=True))}
