"""Pictures of a cluster: as text, and as an image that needs no drawing library.

Both show the truth of the moment: for every replica its phase, how full its batch and its KV memory
are, who waits, and which of the last requests it got.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.glyphs import GLYPH_HEIGHT, GLYPH_WIDTH, text_pixels

HEIGHT, WIDTH = 480, 800
RECENT = 64
"""How many of the last choices are shown."""
LONGEST_QUEUE = 256
"""A queue of so many fills its bar; bars of queues grow with the logarithm."""

RENDER_MODES = ("ansi", "rgb_array")

Image = NDArray[np.uint8]

_INK = (31, 41, 55)
_PAPER = (250, 250, 249)
_TRACK = (229, 231, 235)
_BATCH = (5, 150, 105)
_QUEUE = (220, 38, 38)
_KV = (37, 99, 235)
_CHOSEN = (217, 119, 6)
_PHASES = {
    "serving": (5, 150, 105),
    "pending": (217, 119, 6),
    "draining": (147, 51, 234),
    "down": (220, 38, 38),
    "gone": (209, 213, 219),
}
_TEXT_BAR = 16
_HEADER = 44
_ROWS = 24
"""Replicas below each other, before a further column is begun."""
_COLUMNS = 8
_NARROW = 190
"""Panels of fewer pixels have no room for names."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as drawn."""

    name: str
    phase: str
    running: int
    max_num_seqs: int
    waiting: int
    kv_usage: float
    chosen: tuple[bool, ...]
    """For each of the last choices, the oldest first, whether it was this replica."""

    @property
    def batch(self) -> float:
        """Share of the batch slots in use."""
        return self.running / self.max_num_seqs

    @property
    def queue(self) -> float:
        """Length of the queue's bar, 0 to 1."""
        return float(min(np.log1p(self.waiting) / np.log1p(LONGEST_QUEUE), 1.0))


def views(cluster: Cluster, choices: Sequence[int] = ()) -> list[ReplicaView]:
    """All replicas now. `choices`: the last decisions, the oldest first."""
    recent = list(choices)[-RECENT:]
    owners = cluster.memory.replicas
    return [
        ReplicaView(
            name=spec.profile.name,
            phase=phase.name.lower() if owner["healthy"] else "down",
            running=int(owner["running"]),
            max_num_seqs=int(owner["max_num_seqs"]),
            waiting=int(owner["waiting"]),
            kv_usage=float(owner["held_blocks"] / owner["kv_blocks"]),
            chosen=tuple(choice == number for choice in recent),
        )
        for number, (spec, owner, phase) in enumerate(
            zip(cluster.replicas, owners, cluster.phases, strict=True)
        )
    ]


def checked_mode(render_mode: str | None) -> str | None:
    """The mode, or None for none.

    Raises:
        ValueError: there is no such mode.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode is {', '.join(RENDER_MODES)} or None, not {render_mode!r}")
    return render_mode


def draw(render_mode: str, replicas: Sequence[ReplicaView], title: str) -> str | Image:
    """In one of the `RENDER_MODES`."""
    return draw_text(replicas, title) if render_mode == "ansi" else draw_image(replicas, title)


def draw_text(replicas: Sequence[ReplicaView], title: str) -> str:
    """One line per replica, with bars of batch, queue and KV memory."""
    width = max((len(replica.name) for replica in replicas), default=0)
    lines = [title]
    for number, replica in enumerate(replicas):
        share = f"{sum(replica.chosen)}/{len(replica.chosen)}"
        lines.append(
            f"{number:4d} {replica.name:<{width}} {replica.phase:<8}"
            f" batch {_text_bar(replica.batch)} {replica.running:4d}"
            f"  queue {_text_bar(replica.queue)} {replica.waiting:4d}"
            f"  kv {_text_bar(replica.kv_usage)} {replica.kv_usage:4.0%}"
            f"  chosen {share:>5}"
        )
    return "\n".join(lines)


def draw_image(replicas: Sequence[ReplicaView], title: str) -> Image:
    """(HEIGHT, WIDTH, 3): panels of three bars each and a strip of the last choices.

    Where there are more replicas than panels, the first are shown and the title says how many are not.
    """
    image = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
    image[:] = _PAPER
    shown = replicas[: _ROWS * _COLUMNS]
    if len(shown) < len(replicas):
        title += f"   {len(replicas) - len(shown)} MORE"
    _write(image, 8, 8, title)
    _legend(image)
    columns = max(-(-len(shown) // _ROWS), 1)
    rows = max(-(-len(shown) // columns), 1)
    height = min((HEIGHT - _HEADER - 4) // rows, 72)
    width = WIDTH // columns
    for number, replica in enumerate(shown):
        left = number // rows * width
        top = _HEADER + number % rows * height
        _panel(image[top : top + height, left : left + width], number, replica)
    return image


def _panel(area: Image, number: int, replica: ReplicaView) -> None:
    """Phase, name, bars and choices of one replica, in its part of the image."""
    height, width = area.shape[:2]
    area[1 : height - 1, 3:7] = _PHASES[replica.phase]
    left = 12
    if width >= _NARROW and height >= GLYPH_HEIGHT + 2:
        label = f"{number} {replica.name}"
        if height >= 2 * GLYPH_HEIGHT + 8:
            _write(area, 4, left, label[: (width - left) // GLYPH_WIDTH])
            counts = f"{replica.running} RUN  {replica.waiting} WAIT  KV {replica.kv_usage:.0%}"
            _write(area, height - GLYPH_HEIGHT - 4, left, counts[: width // 2 // GLYPH_WIDTH])
        else:
            _write(area, (height - GLYPH_HEIGHT) // 2, left, label[: width // 3 // GLYPH_WIDTH])
        left = max(width // 3, left)
    strip = max(width // 4, 8)
    bars = width - strip - 8
    shares = (replica.batch, replica.queue, replica.kv_usage)
    edges = np.linspace(2, height - 2, 4).round().astype(int)
    for share, colour, top, bottom in zip(
        shares, (_BATCH, _QUEUE, _KV), edges[:-1], edges[1:], strict=True
    ):
        end = bottom - 1 if bottom - top > 2 else bottom
        area[top:end, left:bars] = _TRACK
        filled = round(min(max(share, 0.0), 1.0) * (bars - left))
        area[top:end, left : left + filled] = colour
    ticks = np.linspace(bars + 4, width - 4, RECENT + 1).astype(int)
    area[2 : height - 2, ticks[0] : ticks[-1]] = _TRACK
    first = RECENT - len(replica.chosen)
    for position, chosen in enumerate(replica.chosen, start=first):
        if chosen:
            begin = ticks[position]
            area[2 : height - 2, begin : max(ticks[position + 1], begin + 1)] = _CHOSEN


def _legend(image: Image) -> None:
    left = 8
    bars = {
        "batch": _BATCH,
        "queue (log)": _QUEUE,
        "kv": _KV,
        f"last {RECENT} choices": _CHOSEN,
        "      edge:": _PAPER,
    }
    for name, colour in (bars | _PHASES).items():
        image[26:34, left : left + 8] = colour
        _write(image, 26, left + 12, name)
        left += 12 + GLYPH_WIDTH * len(name) + 14


def _write(area: Image, top: int, left: int, text: str) -> None:
    """Dark text; what does not fit is cut off."""
    pixels = text_pixels(text)
    room = area[top : top + pixels.shape[0], left : left + pixels.shape[1]]
    room[pixels[: room.shape[0], : room.shape[1]]] = _INK


def _text_bar(share: float) -> str:
    filled = round(min(max(share, 0.0), 1.0) * _TEXT_BAR)
    return "█" * filled + "·" * (_TEXT_BAR - filled)
