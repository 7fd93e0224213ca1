"""Make the traces that ship with Steersman out of the recordings they come from (traces/data/SOURCE.md).

::

    python benchmarks/bundled_traces.py FOLDER

`FOLDER` holds the recordings; the bundled files are written to `traces/data/`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steersman.traces.readers import load_trace
from steersman.traces.readers.agents import STAGGER_S
from steersman.traces.readers.servegen import read_servegen
from steersman.traces.readers.source import open_source
from steersman.traces.schema import Request

OUT = Path(__file__).resolve().parents[1] / "traces" / "data"

DAYS = (2, 3, 4)
WINDOW_HOURS = (0, 4, 8, 12, 16, 20)
"""Of each day, a window that begins at each of these hours is kept."""
WINDOW_S = 600.0
SEED = 11


def main() -> None:
    """Read, thin, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for day in DAYS:
        source = folder / f"servegen_m-large_day{day}_24h.parquet"
        _write_native(OUT / f"servegen_m-large_day{day}.parquet", _windows(source), hours=True)
    _write_native(OUT / "agent_sessions.parquet", _mingled(folder / "agent_sessions.jsonl.gz"))
    table = pq.read_table(folder / "mooncake_conversation_0-2400s.parquet")
    table = table.drop_columns(["prefix_blocks_seen_before"])
    pq.write_table(
        table, OUT / "mooncake_conversation.parquet", compression="zstd", compression_level=19
    )
    for path in sorted(OUT.glob("*.parquet")):
        print(f"{path.name}: {pq.read_metadata(path).num_rows} requests, {path.stat().st_size} bytes")


def _windows(source: Path) -> list[Request]:
    """A few windows of a day, one after the other; the hour stays what it was."""
    starts_s = [3600.0 * hour for hour in WINDOW_HOURS]
    kept = []
    for _, request in read_servegen(open_source(source), ""):
        for number, start_s in enumerate(starts_s):
            within_s = request.arrival_s - start_s
            if 0.0 <= within_s < WINDOW_S:
                kept.append(replace(request, arrival_s=round(number * WINDOW_S + within_s, 3)))
    return kept


def _mingled(source: Path) -> list[Request]:
    """Sessions in a seeded order in which every stretch has about the same share of each agent.

    The recording has one agent's sessions after the other's, and no times between sessions: a split by
    time of that would train on one agent and judge on the other.
    """
    trace = load_trace(source)
    rng = np.random.default_rng(SEED)
    agents = np.array([trace.tenants[code] for code in trace.tenant])
    place = np.empty(len(trace.sessions))
    for agent in np.unique(agents):
        own = np.unique(trace.session[agents == agent])
        place[own] = (rng.permutation(len(own)) + rng.random()) / len(own)
    rank = np.argsort(np.argsort(place))
    requests = []
    for row in range(len(trace)):
        request, session = trace.request(row), int(trace.session[row])
        first_s = trace.arrival_s[trace.session == session][0]
        at_s = rank[session] * STAGGER_S + (request.arrival_s - first_s)
        requests.append(replace(request, arrival_s=round(float(at_s), 3)))
    return sorted(requests, key=lambda request: request.arrival_s)


def _write_native(path: Path, requests: list[Request], *, hours: bool = False) -> None:
    """The columns that say something, in our own schema."""
    columns: dict[str, pa.Array] = {
        "arrival_s": pa.array([r.arrival_s for r in requests]),
        "input_tokens": pa.array([r.input_tokens for r in requests], pa.int32()),
        "output_tokens": pa.array([r.output_tokens for r in requests], pa.int32()),
        "tenant": pa.array([r.tenant for r in requests]),
    }
    if hours:
        columns["hour_of_day"] = pa.array([round(r.hour_of_day or 0.0, 2) for r in requests])
    else:
        columns |= {
            "request_id": pa.array([r.request_id for r in requests]),
            "priority": pa.array([int(r.priority) for r in requests], pa.int8()),
            "turns": pa.array([r.turns for r in requests], pa.int32()),
            "session_id": pa.array([r.session_id for r in requests]),
            "parent_id": pa.array([r.parent_id for r in requests]),
            "think_time_s": pa.array([round(r.think_time_s, 3) for r in requests]),
            "block_hashes": pa.array([r.block_hashes for r in requests], pa.list_(pa.int64())),
            "block_tokens": pa.array([r.block_tokens for r in requests], pa.int32()),
        }
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


if __name__ == "__main__":
    main()
