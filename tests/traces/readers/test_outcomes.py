"""The outcome log read back as a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from steersman.traces.errors import TraceError
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord, segments
from steersman.traces.readers import find_trace, load_trace, open_trace
from steersman.traces.schema import Status

START = 1_700_000_000.0


def _log(folder: Path, *records: OutcomeRecord) -> Path:
    with OutcomeLogWriter(folder) as writer:
        for record in records:
            writer.append(record)
    return folder


def test_a_logged_session_replays_as_a_closed_loop(tmp_path: Path) -> None:
    log = _log(
        tmp_path,
        # Written in order of ending: the long request "a" comes after "b".
        OutcomeRecord("b", START + 1.0, 20, e2e_s=0.5, output_tokens=7, tenant="t"),
        OutcomeRecord("a", START, 10, session_id="s", e2e_s=4.0, output_tokens=9, model="m"),
        OutcomeRecord("refused", START + 2.0, 1, status=Status.REJECTED),
        OutcomeRecord("c", START + 10.0, 30, session_id="s", e2e_s=1.0, output_tokens=5),
        OutcomeRecord("d", START + 10.5, 30, session_id="s", e2e_s=1.0, output_tokens=5),
        OutcomeRecord("e", START + 20.0, 30, session_id="s", parent_id="c", e2e_s=1.0),
    )
    assert find_trace(log).format == "outcome-log"
    requests = {r.request_id: r for r in open_trace(log, model="default")}
    assert list(requests) == ["a", "b", "c", "d", "e"]
    assert [r.arrival_s for r in requests.values()] == [0.0, 1.0, 10.0, 10.5, 20.0]
    assert (requests["a"].model, requests["b"].model) == ("m", "default")
    assert requests["c"].parent_id == "a"
    assert requests["c"].think_time_s == pytest.approx(6.0)
    assert requests["d"].parent_id is None  # "c" was still running: not a consequence of it
    assert requests["e"].parent_id == "c"
    assert requests["e"].think_time_s == pytest.approx(9.0)
    assert requests["e"].output_tokens is None
    assert load_trace(segments(log)[0]).request_ids == tuple(requests)


def test_ids_chosen_twice_are_told_apart(tmp_path: Path) -> None:
    log = _log(tmp_path, *(OutcomeRecord("same", START + i, 1, e2e_s=float("inf")) for i in range(3)))
    assert load_trace(log).request_ids == ("same", "same@2", "same@3")


def test_a_torn_log_is_read_up_to_the_tear(tmp_path: Path) -> None:
    log = _log(tmp_path, *(OutcomeRecord(f"r{i}", START + i, 1, e2e_s=1.0) for i in range(10)))
    segment = segments(log)[0]
    segment.write_bytes(segment.read_bytes()[:-10])
    assert len(load_trace(log)) == 9


def test_directories_without_a_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="directory without outcome log segments"):
        open_trace(tmp_path)
