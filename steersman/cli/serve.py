"""`steersman serve`: the router."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from steersman.serving.config import RouterSettings


def serve(
    config: Annotated[
        Path | None, typer.Option(help="YAML file; see docs/configuration.md for its keys.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="URL of a replica, or URL=PROFILE; once per replica. Replaces the file's."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Hardware profile of backends that name none.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Who decides: 'learned', 'p2c', ….")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Directory of trained models.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Where the outcome log is written.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes that serve, on one port.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the configuration and every backend, then exit.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="With --check: print the result as JSON.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Route OpenAI requests to the replicas of inference engines.

    Options on the command line win over the file.

        steersman serve --backend http://10.0.0.7:8000 --backend http://10.0.0.8:8000
    """
    overrides = {
        "backends": [_backend(text) for text in backend or ()] or None,
        "profile": profile,
        "policy": None if policy is None else {"name": policy},
        "bundle": None if bundle is None else {"directory": str(bundle)},
        "host": host,
        "port": port,
        "workers": workers,
        "outcome_log": None if log_dir is None else {"directory": str(log_dir)},
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    settings = _settings(config, given)
    if check:
        _check(settings, json=json)
    else:
        _run(settings, lambda: _settings(config, given), verbose=verbose)


def _settings(config: Path | None, overrides: dict[str, Any]) -> RouterSettings:
    from steersman.serving.config import RouterSettings
    from steersman.traces.errors import ConfigError
    from steersman.traces.settings import parse_settings, read_yaml

    values = {} if config is None else read_yaml(config)
    if config is None and "backends" not in overrides:
        raise ConfigError("no backends; give --config FILE, or --backend URL once per replica")
    if isinstance(values, dict):
        for key, value in overrides.items():
            section: Any = values.get(key)
            merge = isinstance(value, dict) and isinstance(section, dict)
            if key == "policy" and merge and value["name"] != section.get("name", "learned"):
                merge = False  # another policy's options are not this one's
            values[key] = section | value if merge else value
    return parse_settings(values, RouterSettings, source=str(config or "serve"))


def _backend(text: str) -> dict[str, str]:
    """`URL` or `URL=PROFILE`."""
    url, _, profile = text.partition("=")
    return {"url": url, "profile": profile}


def _run(settings: RouterSettings, read: Callable[[], RouterSettings], *, verbose: bool) -> None:
    import asyncio
    import signal

    import uvloop

    from steersman.serving.app import create_app
    from steersman.serving.collector import settle
    from steersman.serving.reload import Reloader
    from steersman.serving.server import open_socket, serve_forever

    _log_to_stderr(verbose=verbose)
    if settings.workers > 1:
        from steersman.serving.workers.run import serve_in_workers

        raise typer.Exit(serve_in_workers(settings, read))
    app = create_app(settings)
    listener = open_socket(settings)
    # The server raises the signal that stopped it once more when all is done: by then it is no news.
    signal.signal(signal.SIGTERM, lambda *_: None)
    settle()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_forever(app, settings, listener, Reloader(app.state.parts, read)))


def _check(settings: RouterSettings, *, json: bool) -> None:
    import asyncio

    from steersman.cli.common import console, print_json
    from steersman.serving.probe import probe
    from steersman.traces.errors import BackendError

    results = asyncio.run(probe(settings))
    if json:
        print_json({"backends": results})
    else:
        for result in results:
            state = "; ".join(result.problems) or f"serves {', '.join(result.models)}"
            console.print(f"{result.id}  {result.url}  {state}", highlight=False, soft_wrap=True)
    bad = [result for result in results if result.problems]
    if bad:
        raise BackendError(
            f"{len(bad)} of {len(results)} backends have problems, the first: "
            f"{bad[0].id}: {bad[0].problems[0]}"
        )


def _log_to_stderr(*, verbose: bool) -> None:
    import logging

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("steersman").setLevel(logging.INFO)
