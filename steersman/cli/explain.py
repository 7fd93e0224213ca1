"""`steersman explain`: why a request went where it went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from steersman.agents.explain import Candidate, Explanation
    from steersman.traces.outcome_record import OutcomeRecord

SHOWN = 12


def explain(
    request: Annotated[
        str,
        typer.Argument(help="The id in x-steersman-decision-id; without one, the newest record."),
    ] = "",
    log: Annotated[
        Path, typer.Option("--log", help="Directory of the outcome log, or one segment of it.")
    ] = Path("outcomes"),
    candidates: Annotated[int, typer.Option(min=1, help="Replicas to show, the best first.")] = SHOWN,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything, all features included, as one document.")
    ] = False,
) -> None:
    """Tell why a request went to its replica: every candidate, what it would have cost, and the reason.

    From the outcome log: what was known then is all there, and the costs follow from it.
    """
    from steersman.agents.explain import explain_record
    from steersman.cli.common import console, print_json
    from steersman.cli.tables import show

    explained = explain_record(_find(log, request))
    if json:
        print_json(explained)
        return
    show(_table(explained, candidates))
    for sentence in explained.reasons:
        console.print(f"- {sentence}", highlight=False, soft_wrap=True)


def _find(log: Path, request: str) -> OutcomeRecord:
    """The newest record of a request; without a name, the newest of all that chose a replica."""
    from steersman.traces.errors import TraceError
    from steersman.traces.outcome_log import read_newest, read_outcomes

    def keep(record: OutcomeRecord) -> OutcomeRecord | None:
        wanted = record.request_id == request if request else bool(record.replica_ids)
        return record if wanted else None

    if log.is_dir():
        found = read_newest(log, 1, keep)
    else:
        found = [record for record in read_outcomes(log) if keep(record)][-1:]
    if not found:
        what = f"record of request '{request}'" if request else "record of a decision"
        raise TraceError(
            f"has no {what}; ids are in the answers' header x-steersman-decision-id, and records are "
            "written when a request ends",
            path=str(log),
        )
    return found[0]


def _table(explained: Explanation, most: int) -> Table:
    from rich import box
    from rich.table import Table

    shown = list(explained.candidates[:most])
    shown += [each for each in explained.candidates[most:] if each.chosen]
    left = len(explained.candidates) - len(shown)
    table = Table(
        title=f"request {explained.request_id}, model {explained.model}",
        caption="Load as reckoned at the decision, latencies as estimated there; "
        f"cost: the marginal cost, in units of J.{f' Not shown: {left}.' if left else ''}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("replica", no_wrap=True)
    columns = (
        "running",
        "waiting",
        "cached",
        "TTFT ms",
        "TPOT ms",
        "inflicted s",
        "congestion s",
        "cost",
    )
    for column in (*columns, "score"):
        table.add_column(column, justify="right")
    table.add_column("")
    for candidate in shown:
        table.add_row(*_cells(candidate))
    return table


def _cells(candidate: Candidate) -> tuple[str, ...]:
    known = candidate.features
    return (
        candidate.replica,
        f"{known['running']:.0f}",
        f"{known['waiting']:.0f}",
        f"{known['match_fraction']:.0%}",
        f"{1e3 * known['ttft_s']:.0f}",
        f"{1e3 * known['tpot_s']:.1f}",
        f"{known['inflicted_s']:.2f}",
        f"{known['congestion_s']:.2f}",
        f"{candidate.marginal_cost:.3f}",
        "" if candidate.score is None else f"{candidate.score:.3g}",
        "chosen" if candidate.chosen else candidate.barred,
    )
