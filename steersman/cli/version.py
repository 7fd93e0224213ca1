"""`steersman version`: what is installed, for bug reports."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

import typer

from steersman import __version__

LIBRARIES = ("onnxruntime", "starlette", "aiohttp", "numpy", "numba", "torch", "lightgbm", "mlflow")


def version(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Print the versions of Steersman, Python and the libraries that matter."""
    from steersman.cli.common import console, print_json

    found: dict[str, str | None] = {"steersman": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = None
    if json:
        print_json(found)
        return
    for name, value in found.items():
        console.print(f"{name} {value or '(not installed)'}", highlight=False)
