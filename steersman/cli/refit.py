"""`steersman train refit`: the predictors, on what a router logged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman.agents.refit.refit import RefitReport


def refit(
    bundle: Annotated[Path, typer.Option(help="Directory of the bundle that routers serve.")],
    log: Annotated[Path | None, typer.Option("--log", help="Directory of the outcome log.")] = None,
    window: Annotated[int, typer.Option(min=500, help="Most outcomes to learn from.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    memory_gib: Annotated[
        float, typer.Option(min=0, help="Most memory to take, in GiB; 0: no limit.")
    ] = 0.0,
    since: Annotated[
        float | None,
        typer.Option(help="Unix time of a change: what ended later is also learned from by itself."),
    ] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Niceness of this process.")] = 0,
    exit_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Serve again what served before the last refit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Fit the predictors anew on the outcome log; replace those that are better on its newest part.

    A router with `refit.enabled` does this by itself when its predictions drift. The bundle that served
    before is kept beside the new one, as BUNDLE.previous.
    """
    from steersman.cli.common import console, end_with_stdin, print_json
    from steersman.traces.errors import ConfigError

    if exit_with_stdin:
        end_with_stdin()
    if nice:
        os.nice(nice)
    if memory_gib > 0:
        _limit_memory(memory_gib)
    if rollback:
        from steersman.agents.refit.refit import roll_back

        version = roll_back(bundle).version
        if json:
            print_json({"version": version})
        else:
            console.print(f"bundle {version} serves again, in {bundle}", soft_wrap=True)
        return
    if log is None:
        raise ConfigError("--log: not given; name the directory of the outcome log")
    # Seconds to load: mistakes are told before.
    from steersman.agents.refit.refit import RefitPlan
    from steersman.agents.refit.refit import refit as run

    report = run(RefitPlan(log, bundle, window=window, since_s=since, seed=seed))
    if json:
        print_json(report)
    else:
        _print(report)


def _print(report: RefitReport) -> None:
    from steersman.cli.common import console

    console.print(f"{report.outcomes} outcomes that teach")
    for name, reason in report.reasons.items():
        state = "replaced" if name in report.replaced else "kept"
        console.print(f"{name}: {state}; {reason}", soft_wrap=True)
    console.print(f"bundle {report.version or 'none'} serves", soft_wrap=True)


def _limit_memory(gib: float) -> None:
    """Rather fail to allocate than push the router out of memory."""
    import resource

    most = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
