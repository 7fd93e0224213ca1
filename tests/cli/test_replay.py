from __future__ import annotations

import pytest

from steersman.cli.replay import load_requests, objectives
from tests.support.commands import mistake
from tests.support.processes import free_port


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("azure-chat", "--url", "{nowhere}", "--limit", "1"), "/v1/models: cannot be reached"),
        (("azure-chat", "--url", "ftp://x"), "must begin with http"),
        (("no-such-trace.csv", "--url", "{nowhere}"), "no-such-trace.csv"),
        (("azure-chat", "--url", "{nowhere}", "--start", "1e9"), "no request between"),
        (("azure-chat", "--url", "{nowhere}", "--end", "nan"), "--end = nan"),
        (("azure-chat", "--url", "{nowhere}", "--start", "5", "--end", "3"), "after --start = 5"),
        (("azure-chat", "--url", "{nowhere}", "--rate", "0"), "--rate = 0"),
        (("azure-chat", "--url", "{nowhere}", "--rate", "nan"), "--rate = nan"),
        (("azure-chat", "--url", "{nowhere}", "--ttft-slo", "-1"), "--ttft-slo = -1"),
        (("azure-chat", "--url", "{nowhere}", "--tpot-slo", "nan"), "--tpot-slo = nan"),
        (("azure-chat", "--url", "{nowhere}", "--speed", "-1"), "'speed' = -1.0"),
        (("azure-chat", "--url", "{nowhere}", "--out", "table.xlsx"), ".parquet or .jsonl"),
        (("azure-chat", "--url", "{nowhere}", "--out", "/no/such/folder/x.jsonl"), "no folder"),
        (("azure-chat", "--url", "{nowhere}", "--scenario", "tinny"), "did you mean 'tiny'?"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    told = tuple(text.replace("{nowhere}", nowhere) for text in arguments)
    assert said in mistake(("replay", *told), monkeypatch, capsys)


def test_a_slice_at_another_rate() -> None:
    trace = load_requests("azure-chat", start_s=60.0, end_s=600.0, limit=200, rate_rps=20.0)
    assert len(trace) == 200
    assert trace.rate_rps == pytest.approx(20.0)


def test_objectives_come_from_a_scenario_or_are_given() -> None:
    trace = load_requests("azure-chat", start_s=0.0, end_s=None, limit=5, rate_rps=None)
    assert objectives(trace, None, 2.0, 0.1).tolist() == [[2.0, 0.1]] * 5
    from_hardware = objectives(trace, "tiny", 2.0, 0.1)
    assert from_hardware.shape == (5, 2)
    assert set(from_hardware[:, 1]) == {0.05}
