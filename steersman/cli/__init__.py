"""The command-line tool. One module per command; this one assembles them and turns errors into lines.

Command modules import only typer and the standard library at their top, so that `--help` and
completion answer at once and `serve` never loads what only training needs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from steersman import __version__
from steersman.cli import (
    calibrate,
    canary,
    check,
    demo,
    emulate,
    evaluate,
    explain,
    keys,
    promote,
    rehearsal,
    replay,
    retrain,
    serve,
    shadow,
    simulate,
    trace,
    train,
    version,
)
from steersman.traces.errors import SteersmanError

EXTRAS = {
    "ray": ("ray",),
    "sim": ("numba", "gymnasium", "scipy"),
    "tokenizer": ("tokenizers",),
    "query": ("duckdb",),
    "train": (
        *("torch", "stable_baselines3", "lightgbm", "mlflow", "onnx", "onnxscript"),
        *("matplotlib", "jinja2"),
    ),
}
"""Which optional dependency group brings which top-level module."""

app = typer.Typer(
    name="steersman",
    help="Adaptive scheduling for clusters of LLM inference servers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steersman {__version__}")
        raise typer.Exit


app.command()(demo.demo)
app.command()(simulate.simulate)
app.command()(calibrate.calibrate)
app.add_typer(train.app, name="train")
app.add_typer(evaluate.app, name="evaluate")
app.command()(promote.promote)
app.command()(promote.rollback)
app.command()(promote.models)
app.add_typer(canary.app, name="canary")
app.add_typer(promote.registry_app, name="registry")
app.command()(retrain.retrain)
app.command()(rehearsal.rehearsal)
app.command()(serve.serve)
app.command()(check.check)
app.command()(emulate.emulate)
app.add_typer(keys.app, name="keys")
app.command()(replay.replay)
app.command()(explain.explain)
app.add_typer(shadow.app, name="shadow")
app.add_typer(trace.app, name="trace")
app.command()(version.version)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Adaptive scheduling for clusters of LLM inference servers."""


def main() -> None:
    """Entry point of the `steersman` script. Bad input ends in one line on stderr and exit code 2."""
    try:
        sys.exit(app(prog_name="steersman", standalone_mode=False) or 0)
    except SteersmanError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(_usage(error))
    except ModuleNotFoundError as error:
        _fail(_missing_extra(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`steersman … | head`); not an error of ours.
        sys.stderr.close()
        sys.exit(0)


def _usage(error: typer.TyperException) -> str:
    """A wrong option in one line, with the command whose help tells the right ones.

    A group without a command prints its help, which is all there is to say.
    """
    said = error.format_message().strip()
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is not None and not said:
        sys.exit(2)
    where = context.command_path if context is not None else "steersman"
    return f"{said.rstrip('.')}; '{where} --help' lists what it takes"


def _fail(message: str) -> None:
    sys.stderr.write(f"steersman: error: {' '.join(message.split())}\n")
    sys.exit(2)


def _missing_extra(error: ModuleNotFoundError) -> str:
    """The line for a command whose extra is not installed; any other missing module is a bug."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            install = f"pip install 'steersman[{extra}]'"
            return f"this command needs '{module}', which is not installed; {install}"
    raise error
