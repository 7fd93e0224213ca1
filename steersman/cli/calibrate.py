"""`steersman calibrate`: a hardware profile from what was measured, and how far off it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman.env.calibrate import Calibration

POOR = 0.25
"""Error of a held-out median from which on a fit is called poor."""


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            help="Outcome log (directory or segment), or a CSV file with arrival_s, input_tokens, "
            "output_tokens, ttft_s, e2e_s and perhaps replica."
        ),
    ],
    profile: Annotated[
        str, typer.Option(help="Where to start: a bundled profile's name, or a YAML file.")
    ],
    out: Annotated[Path | None, typer.Option(help="Write the fitted profile to this YAML file.")] = None,
    held_out: Annotated[
        float, typer.Option(min=0.05, max=0.9, help="Last share of the requests, not fitted.")
    ] = 0.3,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Fit what an engine iteration costs to measured requests, and report the error on a held-out part.

    The profile's limits (KV capacity, sequences, token budget, batching) are taken as they are: set them
    to what the engine was started with first.
    """
    from steersman.cli.common import console, print_json
    from steersman.env.calibrate import calibrate as fit
    from steersman.env.calibrate import profile_yaml
    from steersman.env.profiles import load_profile
    from steersman.env.samples import read_samples
    from steersman.traces.errors import ConfigError
    from steersman.traces.settings import read_yaml

    start = load_profile(profile)
    is_file = profile.endswith((".yaml", ".yml"))
    model = str(read_yaml(Path(profile))["model"]) if is_file else start.model.name
    found = fit(read_samples(measured), start, held_out=held_out)
    name = start.name if start.name.endswith("-calibrated") else f"{start.name}-calibrated"
    text = profile_yaml(found, name=name, model=model, source=f"calibrated from {measured.name}")
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written ({error}); give another path") from None
    if json:
        print_json(_document(found, name))
        return
    _print(found)
    if out is None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(f"wrote {out}", markup=False, highlight=False)


def _document(found: Calibration, name: str) -> dict[str, object]:
    numbers = asdict(found.profile) | {"name": name, "model": found.profile.model.name}
    return {
        "profile": numbers,
        "fitted_requests": found.fitted_requests,
        "held_out_requests": found.held_out_requests,
        "replicas": found.replicas,
        "errors": [asdict(line) for line in found.errors],
    }


def _print(found: Calibration) -> None:
    from rich.table import Table

    from steersman.cli.common import console

    table = Table(
        title=f"{found.fitted_requests} requests fitted, {found.held_out_requests} held out, "
        f"{found.replicas} replicas"
    )
    for heading in ("held out", "measured (s)", "error before", "error after"):
        table.add_column(heading, justify="left" if heading == "held out" else "right")
    for line in found.errors:
        table.add_row(line.figure, f"{line.measured_s:.4g}", f"{line.before:+.1%}", f"{line.after:+.1%}")
    console.print(table)
    worst = max(
        (line for line in found.errors if line.figure.endswith("_p50")), key=lambda line: abs(line.after)
    )
    if abs(worst.after) > POOR:
        console.print(
            f"The fit is poor: {worst.figure} is {worst.after:+.0%} off on what it has not seen. Are "
            "the profile's limits those of the engine, all replicas of this kind, the times in seconds?",
            markup=False,
            highlight=False,
        )
