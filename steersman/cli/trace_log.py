"""`steersman trace compact|query`: what only an outcome log knows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from steersman.traces.outcome_query import Answer

MOST_ROWS = 100
LogArgument = Annotated[Path, typer.Argument(help="Directory of the outcome log.")]


def compact(
    log: LogArgument,
    total_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Delete the oldest segments to keep all of them within so many bytes."),
    ] = None,
    segment_bytes: Annotated[
        int, typer.Option(min=1, help="To which size the routers' segments grow.")
    ] = 64 * 2**20,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Niceness of this process.")] = 0,
    exit_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Compact closed segments of an outcome log to Parquet; routers have this done by themselves.

    What a router is writing stays as it is. Killing this loses nothing.
    """
    from steersman.cli.common import console, end_with_stdin, print_json
    from steersman.traces.outcome_compaction import compact as run

    if exit_with_stdin:
        end_with_stdin()
    if nice:
        os.nice(nice)
    done = run(log, total_bytes=total_bytes, segment_bytes=segment_bytes)
    if json:
        print_json(done)
        return
    line = f"{log}: {done.segments} segments with {done.records:,} records compacted"
    if done.busy:
        line = f"{log}: somebody is compacting it already"
    elif done.segments:
        line += f", {done.bytes_before / 1e6:,.1f} MB to {done.bytes_after / 1e6:,.1f} MB"
    if done.damaged:
        line += f"; {done.damaged} damaged places are noted in the tables"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def query(
    log: LogArgument,
    sql: Annotated[str, typer.Argument(help="A statement over the view 'outcomes'.")],
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Rows to print; as a table 100, else all.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print rows as JSON, one object a line.")] = False,
) -> None:
    """Ask an outcome log in SQL (needs `steersman[query]`): compacted segments and newest records alike.

    For example: steersman trace query LOG "select policy, count(*) from outcomes group by all". Columns
    are the fields of OutcomeRecord.
    """
    import sys

    import orjson

    from steersman.traces.outcome_query import query as ask

    answer = ask(log, sql, most=most if json else most or MOST_ROWS)
    if not json:
        _show(answer)
        return
    for row in answer.rows:
        line = dict(zip(answer.columns, map(_plain, row), strict=True))
        sys.stdout.write(orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS, default=str).decode() + "\n")


def summary_table(summary: dict[str, Any]) -> Table:
    """What `summarise_log` found."""
    from steersman.cli.tables import facts

    return facts("as an outcome log", _rows(summary))


def _rows(s: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "records", f"{s['records']:,}, of which {s['decisions']:,} reached a replica"
    files, damage = s["segments"], s["damage"]
    yield (
        "segments",
        f"{files['compacted']} compacted, {files['framed']} in frames, {files['bytes'] / 1e6:,.1f} MB",
    )
    yield (
        "damage",
        f"{damage['places']} places ({damage['bytes']:,} bytes), {damage['torn_tails']} torn tails",
    )
    for key, name in _NAMED:
        if s[key]:
            yield name, ", ".join(f"{each} {count:,}" for each, count in s[key].items())
    yield "held back", f"{s['held_back']:,} requests; {s['retried']:,} were tried again elsewhere"
    for key, values in s["latency"].items():
        if values is not None:
            yield key.removesuffix("_s").upper(), ", ".join(f"{q} {v:.4g} s" for q, v in values.items())
    chance = s["propensity"]
    least = "" if chance["least"] is None else f"; the least likely at {chance['least']:.3g}"
    yield (
        "propensity",
        f"known of {chance['known_share']:.1%}, below 1 of {chance['by_chance_share']:.1%}, explored "
        f"{chance['explored_share']:.2%}{least}",
    )
    predicted = s["predicted_ttft"]
    if predicted is not None:
        yield (
            "TTFT predicted",
            f"{predicted['within_p90_share']:.1%} within p90, median error a factor of "
            f"{math.exp(predicted['median_log_error']):.2f}",
        )


_NAMED = (
    ("status", "ended"),
    ("error", "reasons of bad ends"),
    ("policy", "decided by"),
    ("policy_version", "policy versions"),
    ("bundle_version", "bundles"),
    ("fallback_reason", "guard"),
    ("affinity", "groups"),
    ("arm", "canary arms"),
)


def _show(answer: Answer) -> None:
    from rich import box
    from rich.table import Table

    from steersman.cli.common import notes
    from steersman.cli.tables import show

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in answer.columns:
        table.add_column(column, overflow="fold")
    for row in answer.rows:
        table.add_row(*map(_cell, row))
    show(table)
    if answer.cut:
        notes.print("There are more rows; --most tells how many to print.")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _plain(value: Any) -> Any:
    """What JSON has no number for is a word, as in the log."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    return value
