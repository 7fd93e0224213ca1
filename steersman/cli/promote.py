"""`steersman promote`, `rollback`, `models` and `registry watch`: which model serves, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from steersman.agents.gates import GateSettings
    from steersman.agents.registry import ModelRecord, Registry

MLRUNS = Path("mlruns")
TRACKING_VARIABLE = "STEERSMAN_TRACKING_URI"

Store = Annotated[
    Path, typer.Option("--mlruns", help="The MLflow store; its served/ is what routers read.")
]
Tracking = Annotated[
    str,
    typer.Option(
        envvar=TRACKING_VARIABLE,
        help="Address of an MLflow server that has runs and registry; '': the store.",
    ),
]
GatesFile = Annotated[
    Path | None, typer.Option("--gates", help="YAML file of the gates; docs/promote.md lists its keys.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]

registry_app = typer.Typer(help="Between the model registry and the routers.", no_args_is_help=True)


def promote(
    version: Annotated[
        str | None, typer.Argument(help="Version of the registered model; default: the challenger.")
    ] = None,
    override: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Promote although a gate is not passed; kept with it."),
    ] = None,
    gates: GatesFile = None,
    mlruns: Store = MLRUNS,
    tracking_uri: Tracking = "",
    json: Json = False,
) -> None:
    """Make a recorded version the champion that routers serve, if its evidence allows it."""
    import time

    from steersman.agents.promotion import promote as make_champion
    from steersman.cli.common import console, print_json

    made = make_champion(
        _registry(mlruns, tracking_uri),
        version,
        gates=load_gates(gates),
        by=user(),
        now_unix_s=time.time(),
        override=override,
    )
    if json:
        print_json(
            {
                "version": made.version,
                "bundle": made.bundle.version,
                "champion": str(made.bundle.directory),
                "gates": made.gates,
                "override": None if made.override is None else list(made.override.reasons),
            }
        )
        return
    for gate in made.gates:
        console.print(f"{'passed' if gate.passed else 'not passed'}  {gate.name}: {gate.why}")
    if made.override is not None:
        console.print(f"overridden by {made.override.by}: {made.override.reasons[0]}")
    console.print(f"champion: bundle {made.bundle.version} in {made.bundle.directory}")


def rollback(
    reason: Annotated[
        str, typer.Option(help="Why; kept in the history.")
    ] = "asked for on the command line",
    mlruns: Store = MLRUNS,
    tracking_uri: Tracking = "",
    json: Json = False,
) -> None:
    """Serve the champion before again, at once; works while the registry is down."""
    import time

    from steersman.agents.promotion import roll_back
    from steersman.cli.common import console, notes, print_json

    done = roll_back(_registry(mlruns, tracking_uri), by=user(), reason=reason, now_unix_s=time.time())
    if json:
        values = {"version": done.version, "bundle": done.bundle.version, "problem": done.problem}
        print_json(values | {"champion": str(done.bundle.directory)})
        return
    console.print(f"champion: bundle {done.bundle.version} in {done.bundle.directory}")
    if done.problem:
        notes.print(f"the registry is told later ('steersman registry watch'): {done.problem}")


def models(
    mlruns: Store = MLRUNS,
    tracking_uri: Tracking = "",
    json: Json = False,
) -> None:
    """Every version of the model: what it is, where it comes from, what was found out about it."""
    from steersman.cli.common import console, moment, print_json

    registry = _registry(mlruns, tracking_uri)
    registry.store.check_exists()
    found, changes = registry.models(), registry.changes()
    if json:
        print_json({"models": [_as_dict(record) for record in found], "changes": changes})
        return
    if not found:
        console.print("no versions yet; record one with 'steersman train'")
    for record in found:
        _show(record)
    for change in changes:
        before = f" after {change.previous}" if change.previous else ""
        when = moment(change.made_unix_s)
        console.print(f"{when}  champion {change.version}{before}, by {change.by}: {change.reason}")


@registry_app.command()
def watch(
    mlruns: Store = MLRUNS,
    tracking_uri: Tracking = "",
    interval_s: Annotated[
        float, typer.Option(min=0.1, help="Time between two looks, in seconds.")
    ] = 5.0,
    promotes: Annotated[
        bool,
        typer.Option("--promote", help="Make a challenger champion once its canary and gates allow it."),
    ] = False,
    gates: GatesFile = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, then exit.")] = False,
) -> None:
    """Follow the registry's aliases, and write the bundles that routers read.

    While the registry does not answer, everything stays as it is.
    """
    import logging
    import time

    from steersman.agents.registry_watch import RegistryWatch
    from steersman.traces.errors import ArtifactError

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("steersman").setLevel(logging.INFO)
    asked = load_gates(gates)
    loop = RegistryWatch(
        _registry(mlruns, tracking_uri), time.time, promotes=asked if promotes else None
    )
    while True:
        looked = loop.step()
        if once:
            if looked.problem:
                raise ArtifactError(looked.problem)
            return
        time.sleep(interval_s)


def user() -> str:
    """Who types."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def load_gates(file: Path | None) -> GateSettings:
    """The gates of a file, or the usual ones.

    Raises:
        ConfigError: the file is wrong.
    """
    from steersman.agents.gates import GateSettings
    from steersman.traces.settings import load_settings

    return GateSettings() if file is None else load_settings(file, GateSettings)


def _registry(mlruns: Path, tracking_uri: str) -> Registry:
    from steersman.agents.registry import Registry

    return Registry(mlruns, tracking_uri=tracking_uri)


def _as_dict(record: ModelRecord) -> dict[str, Any]:
    import orjson

    values = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return values | {"evidence": [orjson.loads(made.to_json()) for made in record.evidence]}


def _show(record: ModelRecord) -> None:
    from steersman.cli.common import console, moment

    names = f" ({', '.join(record.aliases)})" if record.aliases else ""
    when = moment(record.created_unix_s)
    console.print(
        f"[bold]version {record.version}[/bold]{names}  bundle {record.bundle_version}  {when}"
    )
    for key, value in sorted(record.lineage.items()):
        console.print(f"    {key}: {value}", highlight=False)
    for made in record.evidence:
        by = f" by {made.by}" if made.by else ""
        against = f" against {made.champion}" if made.champion else ""
        console.print(f"    {moment(made.made_unix_s)}  {made.kind}{by}{against}: {made.verdict}")
        for reason in made.reasons:
            console.print(f"        {reason}", highlight=False)
