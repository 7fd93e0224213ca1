from __future__ import annotations

import numpy as np

from steersman.serving.rehearsal.comparison import change, compare
from steersman.serving.replay_result import ReplayResult
from steersman.traces.schema import Status


def result(ttft_s: list[float], replica: list[str], fallback: list[str] | None = None) -> ReplayResult:
    n = len(ttft_s)
    ttft = np.array(ttft_s)
    status = tuple(Status.OK if np.isfinite(t) else Status.FAILED for t in ttft_s)
    return ReplayResult(
        name="t", url="http://x", model="m", wall_s=10.0,
        request_id=tuple(map(str, range(n))),
        scheduled_s=np.zeros(n), lateness_s=np.zeros(n),
        ttft_s=ttft, tpot_s=np.full(n, 0.02), e2e_s=ttft + 1,
        input_tokens=np.full(n, 10), output_tokens=np.full(n, 50), wanted_output_tokens=np.full(n, 50),
        ttft_slo_s=np.ones(n), tpot_slo_s=np.full(n, 0.05),
        status=status, http_status=np.full(n, 200), began=np.isfinite(ttft),
        replica=tuple(replica), fallback=tuple(fallback or [""] * n), error=("",) * n,
    )  # fmt: skip


def cells(comparison_rows: tuple[tuple[str, ...], ...]) -> dict[str, tuple[str, ...]]:
    return {label: tuple(rest) for label, *rest in comparison_rows}


def test_each_policy_is_a_column_and_the_better_cell_is_marked() -> None:
    both = compare({
        "p2c": result([0.5, 0.7, 2.0], ["a", "a", "b"]),
        "learned": result([0.4, 0.5, 0.6], ["a", "b", "b"], ["", "stale", ""]),
    })  # fmt: skip
    assert both.header == ("", "p2c", "learned")
    rows = cells(both.rows)
    assert rows["TTFT p50"] == ("700 ms", "500 ms")
    assert rows["SLO attainment"] == ("66.7 %", "100.0 %")
    assert rows["share of a"] == ("66.7 %", "33.3 %")
    assert rows["fallbacks: stale"] == ("0", "1")
    labels = [row[0] for row in both.rows]
    assert both.best[labels.index("TTFT p50")] == (False, False, True)
    assert both.best[labels.index("TPOT p50")] == (False, False, False)  # equal: nobody is better
    assert len(both.best) == len(both.rows)


def test_failures_are_counted_and_nothing_measured_is_no_number() -> None:
    rows = cells(compare({"p2c": result([np.nan], [""])}).rows)
    assert rows["not answered well"] == ("1",)
    assert rows["TTFT p99"] == ("n/a",)
    assert rows["fallbacks"] == ("0",)


def test_change_is_relative_to_the_old_policy() -> None:
    results = {"p2c": result([1.0], ["a"]), "learned": result([0.8], ["a"])}
    assert change(results, "TTFT p50", "p2c", "learned") == "-20 %"
    assert change({**results, "p2c": result([np.nan], [""])}, "TTFT p50", "p2c", "learned") == "n/a"
