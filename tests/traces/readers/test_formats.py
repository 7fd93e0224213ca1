"""Each public format, read from an excerpt as it is published."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from steersman.traces.readers import find_trace, load_trace, open_trace
from steersman.traces.readers.agents import STAGGER_S
from steersman.traces.readers.mooncake import SessionFinder

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.mark.parametrize(
    ("name", "format_name", "requests"),
    [
        ("azure2023_conv_excerpt.csv", "azure", 500),
        ("mooncake_conversation_excerpt.jsonl", "mooncake", 400),
        ("mooncake_conversation_excerpt.parquet", "mooncake-table", 400),
        ("servegen_m-large_excerpt.csv", "servegen", 500),
        ("servegen_deepseek-r1_excerpt.parquet", "servegen", 500),
        ("agent_sessions_excerpt.jsonl", "agent-sessions", 86),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_format_is_told_by_content(
    name: str, format_name: str, requests: int, compress: bool, tmp_path: Path
) -> None:
    path = tmp_path / "without-suffix"
    if compress and not name.endswith("parquet"):
        with gzip.open(path, "wb") as file:
            file.write((DATA / name).read_bytes())
    else:
        shutil.copy(DATA / name, path)
    assert find_trace(path).format == format_name
    trace = load_trace(path, model="m")
    assert len(trace) == requests
    assert trace.models == ("m",)
    assert (np.diff(trace.arrival_s) >= 0).all()


def test_bundled_trace() -> None:
    trace = load_trace("azure-chat")
    assert trace.name == "azure-chat"
    assert len(trace) == 19366
    assert trace.duration_s == pytest.approx(3501.721937)
    first, second = open_trace("azure-chat", limit=2)
    assert (first.input_tokens, first.output_tokens) == (374, 44)
    assert second.arrival_s == pytest.approx(4.314579)
    assert first.session_id is None
    assert first.block_hashes == ()


def test_azure_csv_equals_the_bundled_parquet() -> None:
    csv, parquet = load_trace(DATA / "azure2023_conv_excerpt.csv"), load_trace("azure-chat", limit=500)
    np.testing.assert_allclose(csv.arrival_s, parquet.arrival_s, atol=2e-6)
    np.testing.assert_array_equal(csv.input_tokens, parquet.input_tokens)
    np.testing.assert_array_equal(csv.output_tokens, parquet.output_tokens)
    assert csv.request(0).hour_of_day == pytest.approx(18.2629669, abs=1e-6)


def test_azure_2024_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "2024.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
        "2024-05-11 00:00:00+00:00,76,15\n"
    )
    assert load_trace(path).arrival_s == pytest.approx([0.0, 0.99007, 86399.99007])


def test_mooncake_keeps_full_blocks_and_chains_sessions() -> None:
    trace = load_trace(DATA / "mooncake_conversation_excerpt.jsonl")
    assert trace.block_tokens == 512
    np.testing.assert_array_equal(np.diff(trace.block_offsets), trace.input_tokens // 512)
    children = np.flatnonzero(trace.parent >= 0)
    assert len(children) == 37
    parents = trace.parent[children]
    np.testing.assert_array_equal(trace.session[parents], trace.session[children])
    gaps = trace.arrival_s[children] - trace.arrival_s[parents]
    np.testing.assert_allclose(trace.think_time_s[children], gaps)
    assert (trace.turns[children] == trace.turns[parents] + 2).all()


def test_mooncake_ticks_are_spread_but_not_left() -> None:
    original = load_trace(DATA / "mooncake_conversation_excerpt.jsonl")
    table = load_trace(DATA / "mooncake_conversation_excerpt.parquet")
    # The same rows in another order within each 3 s tick.
    np.testing.assert_allclose(original.arrival_s // 3, table.arrival_s // 3)
    assert len(np.unique(original.arrival_s)) > 390
    assert (
        original.fingerprint() == load_trace(DATA / "mooncake_conversation_excerpt.jsonl").fingerprint()
    )


def test_fine_mooncake_times_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "synthetic.jsonl"
    times = [0, 0, 40, 40, 40, 80]
    path.write_text(
        "".join(
            f'{{"timestamp": {t}, "input_length": 9, "output_length": 1, "hash_ids": [0]}}\n'
            for t in times
        )
    )
    arrivals = load_trace(path).arrival_s
    assert (arrivals[:2] < 0.04).all()
    assert ((arrivals[2:5] >= 0.04) & (arrivals[2:5] < 0.08)).all()


def test_inferred_sessions_agree_with_the_published_inference() -> None:
    original = load_trace(DATA / "mooncake_conversation_excerpt.jsonl")
    table = load_trace(DATA / "mooncake_conversation_excerpt.parquet")
    ours = {(r.request_id, r.parent_id) for r in original.requests()}
    theirs = {(r.request_id, r.parent_id) for r in table.requests()}
    assert ours == theirs


def test_session_finder_takes_the_latest_continuation() -> None:
    finder = SessionFinder()
    finder.place("a", 0.0, [1, 2, 3])
    finder.place("b", 1.0, [1, 2, 9])  # also ends with [1, 2]: later than a
    assert finder.place("c", 2.0, [1, 2, 4, 5])[1] is not None
    turn, parent = finder.place("d", 3.0, [1, 2, 4, 6, 7])
    assert parent is not None
    assert parent.request_id == "c"  # [1, 2, 4] is longer than [1, 2]
    assert (turn.session, turn.number) == ("a", 3)
    assert finder.place("e", 4.0, [8, 8, 8])[1] is None
    assert finder.place("f", 5.0, [])[1] is None


def test_servegen_clients_are_tenants_with_a_clock() -> None:
    trace = load_trace(DATA / "servegen_m-large_excerpt.csv")
    request = trace.request(0)
    assert request.tenant == "client-143"
    assert request.hour_of_day == pytest.approx(32426.4437 / 3600)
    assert len(trace.tenants) == 26


def test_agent_sessions_are_closed_loops() -> None:
    requests = list(open_trace(DATA / "agent_sessions_excerpt.jsonl"))
    by_id = {r.request_id: r for r in requests}
    roots = [r for r in requests if r.parent_id is None]
    assert [r.arrival_s for r in roots] == [0.0, STAGGER_S, 2 * STAGGER_S]
    for request in requests:
        if request.parent_id is not None:
            parent = by_id[request.parent_id]
            assert request.session_id == parent.session_id
            assert request.arrival_s == pytest.approx(parent.arrival_s + request.think_time_s)
        assert len(request.block_hashes) == (request.input_tokens // 64 if request.block_hashes else 0)
        assert request.input_tokens >= 1


def test_limit_and_rereading() -> None:
    assert [r.request_id for r in open_trace("azure-chat", limit=3)] == ["r1", "r2", "r3"]
    assert list(open_trace("azure-chat", limit=0)) == []
