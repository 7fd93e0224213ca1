"""`steersman trace`: look at request traces and convert them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli import trace_log

if TYPE_CHECKING:
    from rich.table import Table

    from steersman.traces.schema import Request

app = typer.Typer(help="Look at request traces and convert them.", no_args_is_help=True)

app.command()(trace_log.compact)
app.command()(trace_log.query)

TraceArgument = Annotated[
    str,
    typer.Argument(help="A trace file, an outcome log, or a bundled trace (azure-chat)."),
]
ModelOption = Annotated[str, typer.Option(help="Model of requests whose trace names none.")]
SortOption = Annotated[
    bool, typer.Option("--sort", help="Sort by arrival first (reads all of the trace into memory).")
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Take no more than so many requests.")]


@app.command()
def inspect(
    path: TraceArgument,
    model: ModelOption = "",
    limit: LimitOption = None,
    sort: SortOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show a trace's format, rate, burstiness, token counts, sessions and prefix reuse.

    Of an outcome log also who decided and why, how it went, and what off-policy estimates can rest on.
    """
    from steersman.cli.common import console, print_json
    from steersman.traces.errors import TraceError
    from steersman.traces.readers import find_trace, open_trace
    from steersman.traces.trace import Trace

    file = find_trace(path)
    requests = open_trace(path, model=model, limit=limit, sort=sort)
    trace = Trace.from_requests(file.name, _watched(requests, "reading", limit))
    if not len(trace):
        raise TraceError("has no requests", path=str(file.path))
    summary = {"path": str(file.path), "format": file.format, **trace.summary()}
    if file.format == "outcome-log":
        from steersman.traces.outcome_summary import summarise_log

        summary["log"] = summarise_log(file.path)
    if json:
        print_json(summary)
    else:
        console.print(_table(summary))
        if "log" in summary:
            console.print(trace_log.summary_table(summary["log"]))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="What to read; told by its content.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Ends in .csv, .jsonl, .csv.gz, .jsonl.gz or .parquet.")
    ],
    model: ModelOption = "",
    start: Annotated[float, typer.Option(min=0.0, help="Begin at this second of the trace.")] = 0.0,
    end: Annotated[float | None, typer.Option(help="Stop before this second of the trace.")] = None,
    limit: LimitOption = None,
    rate: Annotated[
        float | None, typer.Option(help="Scale time to this many requests per second.")
    ] = None,
    sort: SortOption = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Convert a trace of any known format to Steersman's own schema.

    Times count from --start. OUT appears when it is complete.
    """
    from steersman.cli.common import console, print_json
    from steersman.traces.errors import ConfigError
    from steersman.traces.readers import find_trace, open_trace
    from steersman.traces.readers.slicing import sliced, time_factor
    from steersman.traces.writers import check_suffix, write_trace

    check_suffix(target)
    if target.exists() and not overwrite:
        raise ConfigError(f"{target}: exists already; give another name, or --overwrite")
    if rate is not None and not rate > 0:
        raise ConfigError(f"--rate = {rate:g} must be above 0")
    if end is not None and not end > start:
        raise ConfigError(f"--end = {end:g} must be after --start = {start:g}")
    file = find_trace(source)

    def part() -> Iterator[Request]:
        requests = open_trace(source, model=model, sort=sort)
        return sliced(requests, start_s=start, end_s=end, limit=limit)

    factor = 1.0 if rate is None else time_factor(_watched(part(), "measuring", limit), rate)
    chosen = _stretched(part(), factor)
    first = next(chosen, None)
    if first is None:
        until = "the end" if end is None else f"--end {end:g}"
        raise ConfigError(
            f"{source}: no requests between --start {start:g} and {until}; widen the slice"
        )
    written = write_trace(target, _watched(chain((first,), chosen), "writing", limit))
    if json:
        print_json({"path": str(target), "format": file.format, "requests": written})
    else:
        line = f"{target}: {written} requests, read as '{file.format}'"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stretched(requests: Iterable[Request], factor: float) -> Iterator[Request]:
    for request in requests:
        yield request if factor == 1.0 else replace(request, arrival_s=request.arrival_s * factor)


def _watched(requests: Iterable[Request], what: str, total: int | None) -> Iterator[Request]:
    """Pass requests on under a progress bar."""
    from steersman.cli.common import progress

    step = 1000
    with progress() as bar:
        task = bar.add_task(what, total=total, note="requests")
        count = 0
        for count, request in enumerate(requests, 1):
            if count % step == 0:
                bar.update(task, completed=count)
            yield request
        bar.update(task, completed=count, total=count)


def _table(summary: dict[str, Any]) -> Table:
    from steersman.cli.tables import facts

    return facts(f"{summary['name']} ({summary['format']})", _rows(summary))


def _rows(s: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{s['requests']:,}"
    yield "duration", f"{s['duration_s']:,.1f} s"
    yield "rate", f"{s['rate_rps']:.3g} requests/s"
    if s["interarrival_cv"] is not None:
        yield "burstiness", f"{s['interarrival_cv']:.2f} (CV of gaps; 1 is Poisson)"
    yield "input tokens", _quantiles(s["input_tokens"])
    if s["output_tokens"] is not None:
        yield "output tokens", _quantiles(s["output_tokens"])
    if s["output_unknown"]:
        yield "output unknown", f"{s['output_unknown']:,} requests"
    if s["sessions"]:
        turns = s["turns_per_session"]
        yield (
            "sessions",
            f"{s['sessions']:,} of {turns['mean']:.1f} turns on average, {turns['max']:.0f} at most",
        )
        yield "closed loop", f"{s['closed_loop_requests']:,} requests follow another"
    if s["think_time_s"] is not None:
        think = s["think_time_s"]
        yield "think time", f"p50 {think['p50']:.3g} s, p90 {think['p90']:.3g} s"
    if s["prefix_share"] is not None:
        yield "prefix reuse", f"{s['prefix_share']:.1%} of input tokens (blocks of {s['block_tokens']})"
    yield "tenants", _named(s["tenants"], s["tenant_count"])
    yield "models", _named(s["models"], s["model_count"])
    yield "priorities", ", ".join(f"{name} {count:,}" for name, count in s["priorities"].items())
    yield "fingerprint", s["fingerprint"][:16]


def _quantiles(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in values.items())


def _named(counts: dict[str, int], total: int) -> str:
    named = ", ".join(f"{name or '(none)'} {count:,}" for name, count in counts.items())
    more = total - len(counts)
    return named if more <= 0 else f"{named} and {more:,} more"
