"""`steersman replay`: send a trace to an OpenAI endpoint and measure what its users would see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steersman.serving.replay import ReplaySettings
    from steersman.serving.replay_result import ReplayResult
    from steersman.traces.trace import Trace

API_KEY_VARIABLE = "OPENAI_API_KEY"


def replay(
    trace: Annotated[
        str, typer.Argument(help="A trace file, or the name of a bundled trace (azure-chat).")
    ],
    url: Annotated[str, typer.Option(help="The endpoint, for example http://127.0.0.1:8000.")],
    model: Annotated[str, typer.Option(help="Model to ask for; default: the first one listed.")] = "",
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second to rescale the trace to; default: as recorded."),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Trace seconds per wall second, for backends that run faster too.")
    ] = 1.0,
    start: Annotated[float, typer.Option(min=0, help="Begin at this second of the trace.")] = 0.0,
    end: Annotated[float | None, typer.Option(help="Stop at this second of the trace.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Send no more than so many requests.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight at once, at most.")] = 1024,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 600.0,
    scenario: Annotated[
        str | None, typer.Option(help="Take each request's objectives from this scenario's replicas.")
    ] = None,
    ttft_slo: Annotated[float, typer.Option(help="Without --scenario: TTFT objective, seconds.")] = 1.0,
    tpot_slo: Annotated[float, typer.Option(help="Without --scenario: TPOT objective, seconds.")] = 0.05,
    force_lengths: Annotated[
        bool,
        typer.Option(
            "--force-lengths",
            help="Real engines: max_tokens and ignore_eos, to get the trace's lengths.",
        ),
    ] = False,
    salt: Annotated[
        str, typer.Option(help="Same salt, same prompts, warm caches; default: new prompts every time.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Save every request: .parquet or .jsonl.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Replay a trace over HTTP and print TTFT, TPOT, goodput, shares and fallbacks.

    Answers are streamed; sessions are closed-loop. The bearer token is read from OPENAI_API_KEY.
    """
    from steersman.cli.common import notes, print_json
    from steersman.serving.replay import ReplaySettings
    from steersman.serving.replay_result import check_output_path
    from steersman.traces.settings import parse_settings

    values: dict[str, Any] = {
        "url": url,
        "model": model,
        "speed": speed,
        "concurrency": concurrency,
        "timeout_s": timeout,
        "force_lengths": force_lengths,
        "salt": salt,
        "api_key": os.environ.get(API_KEY_VARIABLE) or None,
    }
    settings = parse_settings(values, ReplaySettings, source="replay")
    if out is not None:
        check_output_path(out)
    requests = load_requests(trace, start_s=start, end_s=end, limit=limit, rate_rps=rate)
    result = _run(requests, settings, objectives(requests, scenario, ttft_slo, tpot_slo))
    if out is not None:
        result.save(out)
    if json:
        print_json(result.summary())
    else:
        show(result)
        if out is not None:
            notes.print(f"every request: {out}", highlight=False, soft_wrap=True)


def load_requests(
    name: str, *, start_s: float, end_s: float | None, limit: int | None, rate_rps: float | None
) -> Trace:
    """The slice of a trace that is to be sent, at the wanted rate.

    Raises:
        ConfigError: nothing is left to send, or the rate is not positive.
        TraceError: the trace cannot be read.
    """
    import numpy as np

    from steersman.traces.arrivals import rescale
    from steersman.traces.errors import ConfigError
    from steersman.traces.readers import load_trace

    if rate_rps is not None and not rate_rps > 0:
        raise ConfigError(f"--rate = {rate_rps:g}: must be above 0")
    if end_s is not None and not end_s > start_s:
        raise ConfigError(f"--end = {end_s:g}: must be after --start = {start_s:g}")
    trace = load_trace(name).between(start_s, float("inf") if end_s is None else end_s)
    if limit is not None:
        trace = trace.select(np.arange(min(limit, len(trace))))
    if len(trace) == 0:
        until = "the end" if end_s is None else f"--end {end_s:g}"
        raise ConfigError(f"{name}: no request between --start {start_s:g} and {until}; widen the slice")
    return trace if rate_rps is None else rescale(trace, rate_rps)


def objectives(trace: Trace, scenario: str | None, ttft_s: float, tpot_s: float) -> NDArray[Any]:
    """(n, 2): TTFT and TPOT objectives of every request."""
    import numpy as np

    from steersman.traces.errors import ConfigError

    for option, value in (("--ttft-slo", ttft_s), ("--tpot-slo", tpot_s)):
        if not value > 0:
            raise ConfigError(f"{option} = {value:g}: must be above 0 seconds")
    if scenario is None:
        return np.tile((ttft_s, tpot_s), (len(trace), 1))
    from steersman.env.scenario import load_scenario
    from steersman.serving.replay import service_levels

    return service_levels(trace, [spec.profile for spec in load_scenario(scenario).replicas])


def _run(trace: Trace, settings: ReplaySettings, slo: NDArray[Any]) -> ReplayResult:
    import uvloop

    from steersman.cli.common import progress
    from steersman.serving.replay import replay as replay_over_http

    bar = progress()
    task = bar.add_task(f"replay {trace.name}", total=len(trace), note="")

    def on_progress(ended: int, failed: int) -> None:
        bar.start()  # not before the endpoint has answered
        bar.update(task, completed=ended, note=f"{failed} failed" if failed else "")

    try:
        return uvloop.run(replay_over_http(trace, settings, slo=slo, on_progress=on_progress))
    finally:
        bar.stop()


def show(result: ReplayResult) -> None:
    """The summary for people."""
    from rich.table import Table

    from steersman.cli.common import console, notes

    summary = result.summary()
    table = Table(title=f"{result.name}: {len(result)} requests to {result.model}")
    for name in ("", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    for label, key, factor in (
        ("TTFT, s", "ttft_s", 1),
        ("TPOT, ms", "tpot_s", 1000),
        ("E2E, s", "e2e_s", 1),
    ):
        cells = (summary[key][name] for name in ("mean", "p50", "p90", "p99"))
        table.add_row(label, *("n/a" if cell is None else f"{cell * factor:.3g}" for cell in cells))
    console.print(table)
    lines = {
        "ended": _counts(summary["statuses"]),
        "failed before the first token": str(summary["failed_before_first_token"]),
        "objectives met": f"{summary['slo_attainment']:.1%} ({summary['goodput_rps']:.2f} requests/s)",
        "output": f"{summary['output_tokens_per_s']:.0f} tokens/s over {summary['wall_s']:.1f} s",
        "share": "  ".join(f"{name} {share:.1%}" for name, share in summary["share"].items()),
        "fallbacks": _counts(summary["fallbacks"]) or "none",
        "errors": _counts(summary["errors"]),
    }
    for label, text in lines.items():
        if text:
            console.print(f"{label}: {text}", highlight=False, soft_wrap=True)
    if not summary["client_kept_up"]:
        late_s = summary["client_lateness_p99_s"]
        notes.print(
            f"note: this client fell behind: 1 % of requests were sent more than {late_s:.2f} s late; "
            "raise --concurrency, lower --rate, or use a machine with more cores",
            highlight=False,
        )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
