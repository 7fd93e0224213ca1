"""`steersman emulate`: backends that behave like vLLM on the described hardware, without any GPU."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from steersman.env.emulator.fleet import Member
    from steersman.env.emulator.settings import EmulatorSettings

DEFAULT_PROFILE = "a100-llama-3.1-8b"
DEFAULT_PORT = 8001


def emulate(
    profile: Annotated[
        str | None,
        typer.Option(
            help="Hardware profile: a bundled name, or a YAML file.", show_default=DEFAULT_PROFILE
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port; 0 takes any free one.", show_default=str(DEFAULT_PORT)
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Run every replica of a scenario (a bundled name, or a YAML file) instead of one."
        ),
    ] = None,
    base_port: Annotated[
        int, typer.Option(min=1, max=65535, help="With --scenario: port of the first replica.")
    ] = 9000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Model name to serve; default: the profile's.")] = "",
    replica_id: Annotated[
        str | None, typer.Option(help="Name of the replica; default: the profile's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of drawn answer lengths and failures.")] = 0,
    speed: Annotated[float, typer.Option(help="Engine seconds per wall second.")] = 1.0,
    slowdown: Annotated[
        float | None, typer.Option(help="A straggler's factor on every iteration; default: 1.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Sequences that may run at once; default: the profile's.")
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of an iteration; default: the profile's.")
    ] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse prompt prefixes.")] = True,
    stream_interval: Annotated[
        int, typer.Option(help="Tokens sent at a time after the first; more cost less CPU.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the replicas as JSON when ready.")] = False,
    exit_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run emulated backends: the OpenAI API and vLLM's metrics page, timed by the cluster model.

    They run until Ctrl-C or SIGTERM. Break them on purpose with POST /emulator/faults.
    """
    from steersman.env.emulator.settings import EmulatorSettings
    from steersman.traces.errors import ConfigError
    from steersman.traces.settings import parse_settings

    common: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "speed": speed,
        "prefix_cache": prefix_cache,
        "stream_interval": stream_interval,
    }
    single: dict[str, Any] = {
        "profile": profile,
        "replica_id": replica_id,
        "slowdown": slowdown,
        "max_num_seqs": max_num_seqs,
        "max_batched_tokens": max_batched_tokens,
    }
    given = {key: value for key, value in single.items() if value is not None}
    if scenario is not None and given:
        option = next(iter(given)).replace("_", "-")
        raise ConfigError(f"--scenario and --{option} exclude each other; write it into the scenario")
    if scenario is not None and port is not None:
        raise ConfigError("--scenario and --port exclude each other; use --base-port")
    settings = parse_settings(
        {"profile": DEFAULT_PROFILE} | common | given, EmulatorSettings, source="emulate"
    )
    if scenario is not None:
        _run_scenario(scenario, settings, host, base_port, json=json)
    else:
        _run_one(
            settings,
            host,
            DEFAULT_PORT if port is None else port,
            json=json,
            exit_with_stdin=exit_with_stdin,
        )


def _run_one(
    settings: EmulatorSettings, host: str, port: int, *, json: bool, exit_with_stdin: bool
) -> None:
    from steersman.env.profiles import load_profile

    profile = load_profile(settings.profile)  # a wrong name is told at once
    from steersman.env.emulator.fleet import Member
    from steersman.env.emulator.server import serve

    def ready(url: str) -> None:
        model = settings.model or profile.model.name
        _show([Member(settings.replica_id or profile.name, url, profile.name, model)], json=json)

    serve(settings, host=host, port=port, on_ready=ready, exit_with_stdin=exit_with_stdin)


def _run_scenario(name: str, common: EmulatorSettings, host: str, base_port: int, *, json: bool) -> None:
    from steersman.cli.common import notes
    from steersman.env.emulator.fleet import Fleet
    from steersman.env.scenario import load_scenario
    from steersman.traces.errors import BackendError

    fleet = Fleet(load_scenario(name), common, host=host, base_port=base_port)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: stopped.append(got))

    def died(member: Member, status: int) -> None:
        notes.print(f"replica {member.id} at {member.url} ended with status {status}", highlight=False)

    try:
        with fleet:
            if not stopped:
                _show(fleet.members, json=json)
            fleet.watch(died, lambda: bool(stopped))
    except BackendError:
        if stopped:  # Ctrl-C reaches the replicas too, and ends those that are still starting
            raise typer.Exit(128 + stopped[0]) from None
        raise
    if not stopped:
        raise BackendError("every emulated replica has ended; start them again")


def _show(members: list[Member], *, json: bool) -> None:
    from steersman.cli.common import console, print_json

    if json:
        print_json({"replicas": members})
    else:
        for member in members:
            console.print(
                f"{member.url}  {member.id}  {member.model} on {member.profile}",
                highlight=False,
                soft_wrap=True,
            )
    console.file.flush()
