"""From measured requests to a profile: what is read, what is refused, what comes out."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from steersman.env.calibrate import calibrate, profile_yaml
from steersman.env.cluster import Cluster
from steersman.env.iterations import cost_of, with_cost
from steersman.env.profiles import load_profile
from steersman.env.samples import Sample, read_samples
from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import HardwareProfile, Status
from tests.env.worlds import play, request, specs, trace_of

START = load_profile("a100-llama-3.1-8b")
HEADER = "arrival_s,input_tokens,output_tokens,ttft_s,e2e_s,replica\n"


def slower() -> HardwareProfile:
    return with_cost(START, cost_of(START) * np.array([1.6, 1.4, 1.5, 1.2, 1.7, 1.3]))


def samples(count: int, replicas: int = 2, rate_rps: float = 3.0) -> list[Sample]:
    """What a slower cluster than START's measured."""
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(1.0 / rate_rps, count))
    trace = trace_of(
        *(
            request(i, float(at_s[i]), int(rng.integers(50, 3000)), int(rng.integers(1, 300)))
            for i in range(count)
        )
    )
    cluster = Cluster(specs(*[slower()] * replicas), trace)
    play(cluster)
    outcomes = cluster.outcomes()
    return [
        Sample(
            f"replica-{outcomes.replica[i]}",
            trace.request(i),
            float(outcomes.ttft_s[i]),
            float(outcomes.e2e_s[i]),
        )
        for i in range(count)
    ]


def csv_of(measured: list[Sample]) -> str:
    return HEADER + "".join(
        f"{s.request.arrival_s},{s.request.input_tokens},{s.request.output_tokens},{s.ttft_s},{s.e2e_s},"
        f"{s.replica}\n"
        for s in measured
    )


def test_a_fit_over_replicas_predicts_what_it_has_not_seen() -> None:
    found = calibrate(samples(300), START)
    assert found.replicas == 2
    assert found.fitted_requests + found.held_out_requests == 300
    assert {line.figure for line in found.errors} == {
        f"{name}_{label}" for name in ("ttft", "tpot", "e2e") for label in ("p50", "p90")
    }
    for line in found.errors:
        assert abs(line.after) < 0.05
        assert abs(line.after) < abs(line.before)
    assert found.profile.kv_capacity_tokens == START.kv_capacity_tokens


def test_the_written_profile_is_read_back(tmp_path: Path) -> None:
    found = calibrate(samples(120), START)
    path = tmp_path / "mine.yaml"
    path.write_text(profile_yaml(found, name="mine", model=START.model.name, source="a: test, #1"))
    read = load_profile(str(path))
    assert cost_of(read) == pytest.approx(cost_of(found.profile), rel=1e-4)
    assert (read.name, read.source, read.batching) == ("mine", "a: test, #1", START.batching)
    assert yaml.safe_load(path.read_text())["model"] == "llama-3.1-8b"


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_csv_file_is_read_by_arrival(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"measured{suffix}"
    measured = samples(5)
    text = csv_of(measured[::-1]).replace(f"{measured[2].ttft_s}", "")
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    read = read_samples(path)
    assert [s.replica for s in read] == [s.replica for s in measured]
    assert read[0].request.arrival_s == 0.0
    assert math.isnan(read[2].ttft_s)
    assert read[4].e2e_s == pytest.approx(measured[4].e2e_s)


def test_an_outcome_log_is_read_without_what_ended_badly(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path / "log") as writer:
        for i, status in enumerate((Status.OK, Status.FAILED, Status.REJECTED, Status.OK)):
            served = "" if status is Status.REJECTED else "a"
            writer.append(
                OutcomeRecord(
                    f"r{i}", 100.0 + i, 10, served_by=served, status=status, ttft_s=0.1, e2e_s=1.0,
                    output_tokens=5, stream=i < 3,
                )
            )  # fmt: skip
    read = read_samples(tmp_path / "log")
    assert [s.request.arrival_s for s in read] == [0.0, 1.0, 3.0]
    assert [s.e2e_s for s in read] == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)
    assert [s.ttft_s for s in read] == pytest.approx([0.1, math.nan, math.nan], nan_ok=True)


def test_too_little_data_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"42 requests with known times .* 50 are needed"):
        calibrate(samples(60), START)


def test_requests_that_cannot_run_on_the_profile_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no request fits profile .*kv_capacity_tokens = 32"):
        calibrate(samples(100), replace(START, kv_capacity_tokens=32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens,output_tokens,ttft_s\n", "no column 'e2e_s'"),
        (HEADER + "0,10,x,1,1,a\n", "line 2: .*put a number"),
        (HEADER + "0,10,5,1,1,a\n0,0,5,1,1,a\n", "line 3: .*1 or more"),
        (HEADER + "0,10,,1,1,a\n", "line 2: .*1 or more"),
        (HEADER + "inf,10,5,1,1,a\n", "line 2: arrival_s = inf"),
        (HEADER + "0,10,5,0,1,a\n", "line 2: ttft_s = 0 must be positive"),
        (HEADER + "0,10,5,1,-1,a\n", "line 2: e2e_s = -1 must be positive"),
        (HEADER + "0,10,5,2,1,a\n", "line 2: e2e_s = 1 is less than ttft_s = 2"),
        (HEADER, "holds no request"),
    ],
)
def test_bad_csv_files_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_samples(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_samples(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(TraceError, match="neither an outcome log nor a CSV file"):
        read_samples(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["noise.csv", "noise.csv.gz"])
def test_noise_is_no_csv_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(3000))
    with pytest.raises(TraceError, match="is no readable CSV file") as refused:
        read_samples(tmp_path / name)
    assert "\n" not in str(refused.value)
