"""`steersman emulate`: backends that behave like vLLM on the described hardware, without any GPU."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer

DEFAULT_PROFILE = "a100-llama-3.1-8b"


def emulate(
    profile: Annotated[
        str | None,
        typer.Option(
            help="Hardware profile: a bundled name, or a YAML file.", show_default=DEFAULT_PROFILE
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8001,
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
    replica_id: Annotated[str, typer.Option(help="Name of the replica; default: the profile's.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of drawn answer lengths and failures.")] = 0,
    speed: Annotated[float, typer.Option(help="Engine seconds per wall second.")] = 1.0,
    slowdown: Annotated[float, typer.Option(help="A straggler's factor on every iteration.")] = 1.0,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Sequences that may run at once; default: the profile's.")
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of an iteration; default: the profile's.")
    ] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse prompt prefixes.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the replicas as JSON when ready.")] = False,
    exit_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run emulated backends: the OpenAI API and vLLM's metrics page, timed by the cluster model.

    They run until Ctrl-C or SIGTERM. Break them on purpose with POST /emulator/faults.
    """
    from steersman.env.emulator.settings import EmulatorSettings
    from steersman.traces.errors import ConfigError
    from steersman.traces.settings import parse_settings

    if scenario is not None:
        if profile is not None:
            raise ConfigError("--scenario and --profile exclude each other; give one")
        _run_scenario(scenario, host, base_port, model, speed, seed, json=json)
        return
    values: dict[str, Any] = {
        "profile": profile or DEFAULT_PROFILE,
        "model": model,
        "replica_id": replica_id,
        "seed": seed,
        "speed": speed,
        "slowdown": slowdown,
        "max_num_seqs": max_num_seqs,
        "max_batched_tokens": max_batched_tokens,
        "prefix_cache": prefix_cache,
    }
    settings = parse_settings(values, EmulatorSettings, source="emulate")
    _run_one(settings, host, port, json=json, exit_with_stdin=exit_with_stdin)


def _run_one(settings: Any, host: str, port: int, *, json: bool, exit_with_stdin: bool) -> None:
    from steersman.env.emulator.fleet import Member
    from steersman.env.emulator.server import serve
    from steersman.env.profiles import load_profile

    profile = load_profile(settings.profile)

    def ready(url: str) -> None:
        model = settings.model or profile.model.name
        _show([Member(settings.replica_id or profile.name, url, profile.name, model)], json=json)

    serve(settings, host=host, port=port, on_ready=ready, exit_with_stdin=exit_with_stdin)


def _run_scenario(
    name: str, host: str, base_port: int, model: str, speed: float, seed: int, *, json: bool
) -> None:
    from steersman.cli.common import notes
    from steersman.env.emulator.fleet import Fleet, Member
    from steersman.env.scenario import load_scenario
    from steersman.traces.errors import BackendError

    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: stopped.append(got))
    fleet = Fleet(
        load_scenario(name), host=host, base_port=base_port, model=model, speed=speed, seed=seed
    )

    def died(member: Member, status: int) -> None:
        notes.print(f"replica {member.id} at {member.url} ended with status {status}", highlight=False)

    with fleet:
        if not stopped:
            _show(fleet.members, json=json)
        fleet.watch(died, lambda: bool(stopped))
    if not stopped:
        raise BackendError("every emulated replica has ended; start them again")


def _show(members: list[Any], *, json: bool) -> None:
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
