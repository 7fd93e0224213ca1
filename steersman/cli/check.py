"""`steersman check`: before a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    config: Annotated[Path, typer.Argument(help="The router's YAML file.")],
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
) -> None:
    """Look at everything a router's configuration names, as the router would, one line for each.

    Exit code 0: it would serve; 1: something failed; 2: the file itself is wrong.

        steersman check router.yaml && systemctl reload steersman
    """
    import asyncio

    from steersman.cli.common import console, print_json
    from steersman.serving.checks import Verdict, check_router
    from steersman.serving.config import RouterSettings
    from steersman.traces.settings import parse_settings, read_yaml

    settings = parse_settings(read_yaml(config), RouterSettings, source=str(config))
    checks = asyncio.run(check_router(settings))
    if json:
        print_json({"checks": checks})
    else:
        for each in checks:
            line = f"{each.verdict.value:<5}{each.subject}: {each.message}"
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    bad = {Verdict.FAIL, Verdict.WARN} if strict else {Verdict.FAIL}
    if any(each.verdict in bad for each in checks):
        raise typer.Exit(1)
