from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.report import figures
from steersman.agents.report.page import Figure, Page, Section, Table, render, write

VOID = {"meta", "path", "use", "rect", "br", "link"}


class Balance(HTMLParser):
    """Checks that every opened element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def example() -> Page:
    rng = np.random.default_rng(0)
    shares = {"p2c": [0.4, 0.6]}
    falling = {"J": (np.arange(10.0), 1 / np.arange(1.0, 11.0))}
    series = {"p2c": rng.lognormal(0, 1, 500), "learned": rng.lognormal(-0.3, 1, 500)}
    return Page(
        title="P2C & learned <policies>",
        subtitle="An example.",
        highlights=[("-12 %", "TTFT p99")],
        sections=[
            Section(
                "Comparison",
                paragraphs=["Both saw the same requests."],
                tables=[Table(("policy", "p99"), [("p2c", "1.2 s"), ("learned", "1.0 s")],
                              best=[(False, False), (False, True)])],
                figures=[
                    Figure(figures.distribution(series, label="TTFT (s)", limit=1.0), "Distribution"),
                    Figure(figures.grouped_bars(["a", "b"], shares, label="share"), "Share"),
                    Figure(figures.curves(falling, x_label="x", y_label="J"), "J"),
                    Figure(figures.intervals([("vs p2c", 0.8, 0.7, 0.9)], label="J", reference=1), "J"),
                ],
                commands=["steersman version"],
            )
        ],
    )  # fmt: skip


def test_the_page_is_well_formed_and_text_is_escaped() -> None:
    html = render(example())
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    assert "<policies>" not in html
    assert "P2C &amp; learned &lt;policies&gt;" in html
    assert html.count("<svg") == 4


def test_the_page_needs_nothing_from_outside() -> None:
    html = render(example())
    assert "<script" not in html
    links = set(re.findall(r'(?:src|href)="([^"#]+)', html))
    assert links == set()


def test_best_cells_are_marked() -> None:
    html = render(example())
    assert '<td class="best">1.0 s</td>' in html
    assert "<td>1.2 s</td>" in html


def test_a_figure_of_nothing_is_still_a_figure() -> None:
    nothing = {"p2c": np.full(3, np.nan)}
    with np.errstate(all="raise"):
        svg = figures.distribution(nothing, label="TTFT (s)", limit=1.0)
    assert svg.startswith("<svg")


def test_the_same_figure_twice_is_the_same_text_but_for_ids() -> None:
    def strip(svg: str) -> str:
        return re.sub(r'(id="|#|url\(#)[\w-]+', "", svg)

    bars = [figures.grouped_bars(["a"], {"x": [1.0]}, label="y") for _ in range(2)]
    assert strip(bars[0]) == strip(bars[1])


def test_writing_replaces_the_page_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write(example(), path)
    first = path.read_text(encoding="utf-8")
    write(example(), path)
    assert path.read_text(encoding="utf-8")[:200] == first[:200]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("width", [1280, 390])
def test_chromium_shows_the_page_without_sideways_scrolling(
    width: int, tmp_path: Path, chromium: str
) -> None:
    from tests.support.browser import measure

    path = tmp_path / "report.html"
    write(example(), path)
    seen = measure(chromium, path, width)
    assert seen["title"] == "P2C & learned <policies>"
    assert seen["figures"] == 4
    assert seen["smallest_figure_width"] > 200
    assert seen["scroll_width"] <= seen["client_width"]
