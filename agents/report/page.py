"""An HTML report: a page of sections, each with text, tables and figures, in one file without scripts.

The page needs no network and no JavaScript: styles and SVG figures are inline, so it can be mailed,
archived with an MLflow run or opened from a disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of already formatted cells. The first column is left-aligned, the others right-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: Sequence[Sequence[bool]] = ()
    """Same shape as `rows`: cells to mark as the best of their kind; empty for none."""
    marks: Sequence[Sequence[str]] = ()
    """Same shape: `win`, `lose` or `even` colours a cell, an empty text does not; empty for none. The
    text of a cell has to say it too, for those who see no colours."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An inline SVG drawing (`agents/report/figures.py`) and what it shows, in words."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """One heading's worth."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    commands: Sequence[str] = ()
    """Shell lines a reader may copy."""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    highlights: Sequence[tuple[str, str]] = ()
    """Pairs of a figure and its name, shown large at the top."""
    created: datetime = field(default_factory=lambda: datetime.now(UTC))


def render(page: Page) -> str:
    """The page as HTML. Text is escaped; only the SVG of figures is taken as it is."""
    environment = Environment(
        loader=PackageLoader("steersman.agents.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(page=page, Markup=Markup)


def write(page: Page, path: Path) -> None:
    """Render to a file, atomically: a reader sees the old page or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".html.part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(render(page))
    Path(name).chmod(0o644)
    Path(name).replace(path)
