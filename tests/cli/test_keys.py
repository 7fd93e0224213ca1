from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from steersman.cli import app
from steersman.serving.access.gate import Gate
from steersman.serving.access.settings import KeyFile
from steersman.traces.errors import ConfigError
from steersman.traces.settings import load_settings


def test_what_is_printed_is_an_entry_of_the_file_and_the_key_apart(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n")
    keys = []
    for options in (["--tenant", "search", "--model", "llama-*", "--days", "3"], ["--name", "Ö: x"]):
        done = CliRunner().invoke(app, ["keys", "new", *options])
        assert done.exit_code == 0
        keys.append(done.stderr.split()[-1])
        assert keys[-1] not in done.stdout
        with path.open("a") as file:
            file.write(done.stdout)
    gate = Gate(load_settings(path, KeyFile))
    first, second = (gate.caller([(b"api-key", key.encode())]) for key in keys)
    assert (first.tenant, first.models) == ("search", ("llama-*",))
    assert (second.tenant, second.models) == ("", ())


def test_json() -> None:
    made = json.loads(CliRunner().invoke(app, ["keys", "new", "--json"]).stdout)
    assert made["key"].split("-")[2] == made["entry"]["id"]


def test_an_option_the_router_would_refuse_is_refused() -> None:
    done = CliRunner().invoke(app, ["keys", "new", "--tenant", "a b"])
    assert isinstance(done.exception, ConfigError)
    assert done.stdout == ""
