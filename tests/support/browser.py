"""A real browser for tests: Chromium, headless, asked what it laid out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip

PROBE = """
<script>
window.addEventListener("load", () => {
  const svgs = [...document.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect().width);
  document.body.setAttribute("data-seen", JSON.stringify({
    title: document.title,
    figures: svgs.length,
    smallest_figure_width: Math.min(...svgs),
    scroll_width: document.documentElement.scrollWidth,
    client_width: document.documentElement.clientWidth,
  }));
});
</script>
"""

FRAME = """
<body>
<iframe src="{name}" style="width:{width}px;height:900px;border:0"></iframe>
<script>
const inner = document.querySelector("iframe");
inner.onload = () => setTimeout(() => {{
  document.body.setAttribute("data-seen", inner.contentDocument.body.getAttribute("data-seen"));
}}, 50);
</script>
</body>
"""


def measure(chromium: str, page: Path, width: int) -> dict[str, Any]:
    """Open a page `width` CSS pixels wide and return what was laid out.

    Chromium does not make its window narrower than some 500 pixels, so the page is opened in a frame of
    the wanted width.
    """
    probed = page.with_suffix(".probed.html")
    html = page.read_text(encoding="utf-8")
    probed.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame = page.with_suffix(".frame.html")
    frame.write_text(
        FRAME.format(name=probed.name, width=width),
        encoding="utf-8",
    )
    dom = _run(chromium, "--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=4000",
               frame.as_uri())  # fmt: skip
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, dom[:2000]
    seen: dict[str, Any] = json.loads(unescape(found.group(1)))
    return seen


def screenshot(
    chromium: str, page: Path, picture: Path, *, width: int = 1280, height: int = 2400
) -> None:
    """A PNG of the page."""
    _run(chromium, f"--screenshot={picture}", f"--window-size={width},{height}", page.as_uri())


def _run(chromium: str, *args: str) -> str:
    with tempfile.TemporaryDirectory(prefix="steersman-chromium-") as profile:
        finished = subprocess.run(
            [chromium, *FLAGS, f"--user-data-dir={profile}", *args],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "HOME": profile},
        )
    return finished.stdout
