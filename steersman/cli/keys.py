"""`steersman keys`: API keys for the router."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

app = typer.Typer(help="API keys for the router.", no_args_is_help=True)


@app.command()
def new(
    name: Annotated[str, typer.Option(help="For people: whose key it is.")] = "",
    tenant: Annotated[str, typer.Option(help="Its requests are this tenant's.")] = "",
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may ask for, * for any part; repeat for more.")
    ] = None,
    top_priority: Annotated[
        int, typer.Option(min=0, max=3, help="The most urgent class it may ask for.")
    ] = 0,
    days: Annotated[
        int | None, typer.Option(min=1, help="Days until it expires; without it, never.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print key and entry as JSON.")] = False,
) -> None:
    """Make a key. It is shown once; the key file gets only its hash.

    The entry goes to stdout, the key to stderr, so that the file never sees the key:

        steersman keys new --tenant search >> keys.yaml
    """
    from steersman.cli.common import notes, print_json
    from steersman.serving.access.secrets import new_key

    key, key_id, hashed = new_key()
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) if days else None
    entry: dict[str, Any] = {"id": key_id, "hash": str(hashed), "name": name, "tenant": tenant}
    entry |= {"models": model or [], "top_priority": top_priority, "expires": expires}
    entry = {field: value for field, value in entry.items() if value not in ("", [], 0, None)}
    if json:
        print_json({"key": key, "entry": entry})
        return
    notes.print(f"The key, shown only now: {key}", highlight=False, soft_wrap=True)
    typer.echo(_yaml_item(_checked(entry)), nl=False)


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry, as a router would take it.

    Raises:
        ConfigError: an option is not what a router takes.
    """
    from steersman.serving.access.settings import KeySettings
    from steersman.traces.settings import parse_settings

    parse_settings(entry, KeySettings, source="keys new")
    return entry


def _yaml_item(entry: dict[str, Any]) -> str:
    """One item under `keys:`, with two blanks before it."""
    import yaml

    text = yaml.safe_dump([entry], sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"  {line}\n" for line in text.splitlines())
