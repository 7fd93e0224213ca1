"""`steersman canary`: see and move the canary of routers, from beside them.

It reads the router's configuration and goes to where the state of the canary is, as the routers do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from steersman.serving.canary.commands import Command
    from steersman.serving.canary.state import CanaryState
    from steersman.serving.config import RouterSettings

app = typer.Typer(help="See and move the canary of a challenger.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", help="The routers' YAML file.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the history.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]


@app.command()
def status(config: Config, json: Json = False) -> None:
    """How it stands: stage, share, figures, history."""
    settings = _settings(config)
    _print(_apply(settings, None), settings, json=json)


@app.command()
def start(config: Config, json: Json = False) -> None:
    """Try the challenger, also one that was tried before; routers begin within seconds."""
    from steersman.serving.canary.commands import Command

    settings = _settings(config)
    _print(_apply(settings, Command.START), settings, json=json)


@app.command()
def abort(config: Config, reason: Reason = "no reason given", json: Json = False) -> None:
    """All traffic to the champion, at once."""
    from steersman.serving.canary.commands import Command

    settings = _settings(config)
    _print(_apply(settings, Command.ABORT, reason), settings, json=json)


@app.command()
def promote(
    config: Config,
    reason: Annotated[str, typer.Option(help="Why not to wait for its end; kept as an override.")],
    json: Json = False,
) -> None:
    """All traffic to the challenger, at once, whatever is known of it."""
    from steersman.serving.canary.commands import Command

    settings = _settings(config)
    _print(_apply(settings, Command.PROMOTE, reason), settings, json=json)


def _settings(config: Path) -> RouterSettings:
    from steersman.serving.config import RouterSettings
    from steersman.traces.errors import ConfigError
    from steersman.traces.settings import load_settings

    settings = load_settings(config, RouterSettings)
    if not settings.canary.enabled:
        raise ConfigError(f"{config}: canary.enabled is false; set it, and what is to be tried")
    return settings


def _apply(settings: RouterSettings, command: Command | None, reason: str = "") -> CanaryState:
    """Go where the state is, change it or not."""
    import asyncio
    import time

    from steersman.cli.promote import user
    from steersman.serving.canary.commands import change_for
    from steersman.serving.canary.make import make_store
    from steersman.serving.canary.store import StoreDown
    from steersman.serving.metrics import RouterMetrics
    from steersman.serving.shared.server import SharedServer
    from steersman.traces.errors import BackendError

    options = settings.canary

    def leave(state: CanaryState) -> None:
        del state

    async def change() -> CanaryState:
        shared = SharedServer(settings.shared, RouterMetrics()) if settings.shared.url else None
        # The routers keep their copies themselves.
        there = options.model_copy(update={"state_file": ""}) if shared is not None else options
        store = make_store(there, shared)
        try:
            if command is None:
                return (await store.update(leave))[0]
            asked = change_for(command, options, by=user(), reason=reason, now_unix_s=time.time())
            return (await store.update(asked))[0]
        except StoreDown as error:
            place = options.state_file or "shared.url"
            raise BackendError(f"{place}: {error}; nothing was changed, try again") from None
        finally:
            if shared is not None:
                await shared.close()

    return asyncio.run(change())


def _print(state: CanaryState, settings: RouterSettings, *, json: bool) -> None:
    import time

    from steersman.cli.common import console, moment, print_json
    from steersman.serving.canary.commands import describe

    told = describe(state, settings.canary, time.time())
    if json:
        print_json(told)
        return
    share = f"{100 * told['share']:g} % of the traffic"
    console.print(f"{told['phase']}: {told['challenger'] or 'none'}, {share}", highlight=False)
    if told["start_asked_by"]:
        console.print(f"a start was asked for by {told['start_asked_by']}; routers take it up")
    if state.running:
        _print_stage(told)
    for one in told["history"]:
        console.print(
            f"{moment(one['at_unix_s'])}  {one['challenger']} {one['what']}, "
            f"{100 * one['share']:g} %: {one['reason']}",
            highlight=False,
            soft_wrap=True,
        )


def _print_stage(told: dict[str, Any]) -> None:
    from steersman.cli.common import console

    stages = ", ".join(f"{100 * share:g} %" for share in told["stages"])
    console.print(
        f"stage {told['stage']} of {stages}: {told['held_s']:.0f} of {told['hold_s']:g} s, "
        f"{told['requests']} of {told['least_requests']} requests; against {told['champion'] or 'none'}",
        highlight=False,
    )
    for name, value in told["figures"].items():
        console.print(f"    {name}: {value:.4g}", highlight=False)
