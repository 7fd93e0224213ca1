"""`steersman rehearsal`: the whole loop of learning once, on emulated backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman.serving.drill.site import Progress
    from steersman.serving.drill.story import Story

FIGURES = "rehearsal.json"
REPORT = "rehearsal.html"


def rehearsal(
    out: Annotated[
        Path, typer.Option(help="Where everything goes; an earlier rehearsal there is replaced.")
    ] = Path("reports/rehearsal"),
    config: Annotated[
        Path | None, typer.Option(help="YAML file with other settings (docs/rehearsal.md).")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same story on few requests; its figures claim nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Rehearse drift, retraining, shadow, canary, promotion, a bad challenger, and rollback.

    Everything runs on loopback and needs no GPU: emulated backends, a router, a model registry of its
    own. Ends with a report of one page, and rehearsal.json.
    """
    import orjson

    from steersman.cli.common import command_line, console, notes, print_json
    from steersman.serving.drill.settings import RehearsalSettings
    from steersman.serving.drill.settings import quick as quick_settings
    from steersman.traces.settings import load_settings

    settings = quick_settings() if quick else RehearsalSettings()
    if config is not None:
        settings = load_settings(config, RehearsalSettings)
    _make_room(out)
    # Seconds to load: mistakes are told before.
    from steersman.agents.report.page import write
    from steersman.env.saturation import with_traffic
    from steersman.env.scenario import load_scenario
    from steersman.serving.drill.rehearsal import Rehearsal
    from steersman.serving.drill.report import page, rows
    from steersman.serving.drill.site import Site
    from steersman.serving.rehearsal.children import Children

    with Children(out / "logs") as children:
        notes.print("Starting emulated backends and a router ...")
        scenario = with_traffic(load_scenario(settings.scenario), None, "evaluation")
        site = Site(settings, scenario, out, children)
        site.start_backends()
        story = Rehearsal(site, _bars, lambda text: notes.print(text, markup=False)).play()
    figures = rows(story)
    (out / FIGURES).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    write(page(story, settings, [command_line()]), out / REPORT)
    if json:
        print_json(figures)
        return
    _print(story)
    console.print(f"report: {(out / REPORT).resolve()}", highlight=False, soft_wrap=True)
    console.print(f"figures: {(out / FIGURES).resolve()}", highlight=False, soft_wrap=True)


@contextmanager
def _bars(name: str, total: int) -> Iterator[Progress]:
    from steersman.cli.common import progress

    with progress() as bars:
        task = bars.add_task(name, total=total, note="")

        def advance(done: int, failed: int) -> None:
            bars.update(task, completed=done, note=f"{failed} not answered well" if failed else "")

        yield advance


def _make_room(out: Path) -> None:
    """What an earlier rehearsal left there goes; anything else is left alone.

    Raises:
        ConfigError: it cannot be written, or holds other things.
    """
    import shutil

    from steersman.traces.errors import ConfigError

    mark = out / ".rehearsal"
    try:
        if out.is_dir() and any(out.iterdir()):
            if not mark.is_file():
                raise ConfigError(f"--out {out}: holds other things; give an empty directory")
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror}); give another") from None


def _print(story: Story) -> None:
    from rich.table import Table

    from steersman.cli.common import console
    from steersman.serving.drill.report import rows

    table = Table(title="Rehearsal")
    for heading in ("figure", "value", "note"):
        table.add_column(heading)
    for one in rows(story):
        value = one["value"]
        shown = f"{value:.4g}" if isinstance(value, float) else "–"
        table.add_row(str(one["name"]), shown, str(one["note"]))
    console.print(table)
