"""Everything breaks, and the books must balance.

    python benchmarks/chaos.py [--quick] [--only NAME,NAME] [--json FILE]

Four emulated backends and a router of two workers, all real processes. For ten minutes (`--quick`: about
one) backends are killed, frozen, slowed, fail, answer rubbish, break off in the middle, lie about their
load; the disk of the outcome log fills up; the configuration is changed, broken and mended; the router's
workers are replaced. Two backends at a time are hurt at most. `--only` takes some of these incidents, by
their names in `chaos_incidents.py`: those of two then go on at the same time nearly always. Clients
that know what every answer must be keep books, and at the end three accounts are compared: theirs, the
router's counters, and its outcome log.

- `chaos.requests`: sent.
- `chaos.unaccounted`: missing or twice in the log, in the log and not sent, or ended otherwise there
  than at the client; plus the difference of the counters. What the router says it has dropped from the
  log is not missing.
- `chaos.dropped`: that.
- `chaos.lost_before_first_byte`: no answer had begun, and none came.
- `chaos.wrong_bytes`: answers with bytes that are not theirs, or cut short without saying so.
- `chaos.broken_after_first_byte`: cut short, and said so: what a backend takes with it when it dies.
- `chaos.worst_lag_ms`, `chaos.cpu_waiting`: how late the clients were, and the share of the time in
  which somebody on this machine waited for a core (Linux's pressure stall information). Where that is
  nearly all of it, a router that is not let run sees every time-out fire, and the run says little.

Exits with 1 if something is unaccounted for, lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chaos_books import Clients, Ending, Entry
from chaos_incidents import BACKENDS, DISK, ROUTER, Incident, Plan
from chaos_stage import Stage, small_disk

from steersman.serving.rehearsal.children import Children
from steersman.traces.outcome_log import read_outcomes
from steersman.traces.schema import Status

RATE_RPS = 10.0
PRESSURE = Path("/proc/pressure/cpu")
SETTLED_S = 2.5
"""Until every worker has written its counters."""
AGREES = {
    Ending.OK: {Status.OK},
    Ending.BROKEN: {Status.FAILED},
    Ending.LOST: {Status.FAILED, Status.REJECTED},
    Ending.LEFT: set(Status),
    Ending.WRONG: set(Status),
}
"""What the router may say of a request that ended so for its client."""


def main() -> int:
    """Run, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--seconds", type=float, help="another length")
    parser.add_argument("--only", default="", help="incidents, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of requests and incidents")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    seconds = options.seconds or (40.0 if options.quick else 600.0)
    last_s, pause_s = ((3.0, 5.0), (0.5, 1.0)) if options.quick else ((4.0, 15.0), (1.0, 5.0))
    with tempfile.TemporaryDirectory() as scratch, small_disk() as (disk, fillable):
        incidents = chosen(BACKENDS | ROUTER | (DISK if fillable else {}), options.only)
        plan = Plan(incidents, last_s, pause_s, options.seed)
        with Children(Path(scratch) / "logs") as children:
            stage = Stage(children, Path(scratch), disk / "outcomes")
            stage.start()
            clients = Clients(stage.url, RATE_RPS, options.seed)
            before_s, began_s = cpu_waiting_s(), time.monotonic()
            try:
                page = asyncio.run(play(stage, clients, plan, seconds))
            except OSError as error:  # a router that is gone has no page
                sys.exit(f"{error}\nThe router said:\n{children.log('router').read_text()}")
            waited = (cpu_waiting_s() - before_s) / (time.monotonic() - began_s)
            stage.stop_router()
            said = children.log("router").read_text(encoding="utf-8", errors="replace")
        rows = judge(clients.entries, stage.log, page, plan)
    note = ", ".join(f"{count} x {name}" for name, count in plan.counts().items())
    rows.append(row("chaos.worst_lag_ms", round(1000 * clients.worst_lag_s), "of sending", unit="ms"))
    if PRESSURE.exists():
        rows.append(row("chaos.cpu_waiting", round(100 * waited), "of the time", unit="%"))
    rows[0]["note"] = note if fillable else f"{note}; no right to mount a tmpfs, so no full disk"
    for each in rows:
        print(f"{each['name']:<32}{each['value']:>8.0f} {each['unit']:<9} {each['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    bad = any(each["value"] for each in rows[1:4])
    if bad:
        print(f"The router said:\n{said}", file=sys.stderr)
    return int(bad)


def chosen(incidents: dict[str, Incident], only: str) -> dict[str, Incident]:
    """Those that `--only` names, or all."""
    names = only.split(",") if only else list(incidents)
    if unknown := set(names) - set(incidents):
        sys.exit(f"--only: no incident {', '.join(unknown)} here; there are {', '.join(incidents)}")
    return {name: incidents[name] for name in names}


async def play(stage: Stage, clients: Clients, plan: Plan, seconds: float) -> str:
    """Requests and incidents; the router's counters in the end."""
    began_s = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {what}", file=sys.stderr)

    until_s = began_s + seconds
    await asyncio.gather(plan.run(stage, until_s - 2.0, tell), clients.run(until_s))
    await asyncio.sleep(SETTLED_S)
    return await stage.metrics()


def cpu_waiting_s() -> float:
    """Seconds so far in which something waited for a core; 0 if the system does not tell."""
    found = re.search(r"^some .*total=(\d+)", PRESSURE.read_text() if PRESSURE.exists() else "")
    return int(found[1]) / 1e6 if found else 0.0


def judge(entries: list[Entry], log: Path, page: str, plan: Plan) -> list[dict[str, object]]:
    """Compare the books; tells every request in question on standard error, and what went on then."""
    logged = Counter[str]()
    status: dict[str, Status] = {}
    for record in read_outcomes(log):
        name = record.session_id or ""
        logged[name] += 1
        status[name] = record.status
    strange = set(logged) - {entry.session for entry in entries}
    unaccounted = [entry for entry in entries if not is_accounted(entry, logged, status)]
    dropped = int(total(page, "steersman_outcome_log_dropped_total"))
    difference = abs(int(total(page, "steersman_requests_total")) - logged.total() - dropped)
    missing = sum(not logged[entry.session] for entry in unaccounted)
    count = len(unaccounted) - min(missing, dropped)
    lost = [entry for entry in entries if entry.ending is Ending.LOST]
    wrong = [entry for entry in entries if entry.ending is Ending.WRONG]
    broken = [entry for entry in entries if entry.ending is Ending.BROKEN]
    left = sum(entry.ending is Ending.LEFT for entry in entries)
    for kind, those in (("unaccounted", unaccounted), ("lost", lost), ("wrong", wrong)):
        for entry in those:
            print(
                f"{kind}: {entry.session} {entry.ending} {entry.replica} logged "
                f"{logged[entry.session]} x {status.get(entry.session)}: {entry.problem}; "
                f"{plan.told(entry.sent_s, entry.ended_s)}",
                file=sys.stderr,
            )
    return [
        row("chaos.requests", len(entries), ""),
        row(
            "chaos.unaccounted",
            count + len(strange) + difference,
            f"{count} sent, {len(strange)} never sent, counters off by {difference}",
        ),
        row("chaos.lost_before_first_byte", len(lost), ""),
        row("chaos.wrong_bytes", len(wrong), ""),
        row("chaos.dropped", dropped, "records, and counted"),
        row("chaos.broken_after_first_byte", len(broken), "said so to the client"),
        row("chaos.retries", int(total(page, "steersman_retries_total")), "attempts after the first"),
        row("chaos.left", left, "clients that went away, as they meant to"),
    ]


def total(page: str, name: str) -> float:
    """The sum of a counter over its labels."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


def is_accounted(entry: Entry, logged: Counter[str], status: dict[str, Status]) -> bool:
    """Whether the log has it once, and agrees with the client."""
    if entry.ending is Ending.LEFT and not logged[entry.session]:
        return True  # it may have left before it was read
    return logged[entry.session] == 1 and status[entry.session] in AGREES[entry.ending]


def row(name: str, value: int, note: str, *, unit: str = "requests") -> dict[str, object]:
    """One figure."""
    return {"name": name, "value": value, "lo": None, "hi": None, "unit": unit, "note": note}


if __name__ == "__main__":
    sys.exit(main())
