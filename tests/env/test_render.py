from __future__ import annotations

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.glyphs import GLYPH_HEIGHT, GLYPH_WIDTH, text_pixels
from steersman.env.render import (
    HEIGHT,
    LONGEST_QUEUE,
    WIDTH,
    ReplicaView,
    checked_mode,
    draw_image,
    draw_text,
    views,
)
from tests.env.worlds import request, small_profile, specs, trace_of


def view(phase: str = "serving", running: int = 0, waiting: int = 0) -> ReplicaView:
    return ReplicaView("gpu-model", phase, running, 8, waiting, running / 16, (True, False))


def loaded(count: int) -> Cluster:
    profile = small_profile(kv_capacity_tokens=3200, max_num_seqs=2)
    trace = trace_of(*(request(i, 0.0, 50, 50) for i in range(count)), request(99, 1e-6, 50, 50))
    cluster = Cluster(specs(profile, profile), trace, prefix_cache=False)
    for _ in range(count):
        cluster.next_request()
        cluster.dispatch(1)
    cluster.next_request()
    return cluster


def test_views_are_the_truth_of_the_moment() -> None:
    idle, busy = views(loaded(5), [0, 1, 1])
    assert (idle.running, idle.waiting, idle.kv_usage) == (0, 0, 0.0)
    # The first to come starts an iteration alone; the others wait for its end.
    assert (busy.running, busy.waiting) == (1, 4)
    assert busy.batch == 0.5
    assert 0 < busy.kv_usage < 1
    assert busy.chosen == (False, True, True)
    cluster = loaded(5)
    cluster.set_health(0, False)
    cluster.drain(1)
    assert [each.phase for each in views(cluster)] == ["down", "draining"]


def test_text_has_a_line_with_bars_for_each_replica() -> None:
    text = draw_text([view(), view("draining", 4, LONGEST_QUEUE)], "the title")
    title, idle, busy = text.split("\n")
    assert title == "the title"
    assert "█" not in idle
    assert "draining" in busy
    assert "batch ████████········    4" in busy
    assert f"queue {'█' * 16}  {LONGEST_QUEUE}" in busy
    assert "kv ████············  25%" in busy
    assert "chosen   1/2" in busy


@pytest.mark.parametrize("count", [0, 1, 3, 24, 25, 100, 192, 600])
def test_the_image_has_one_size_whatever_the_cluster(count: int) -> None:
    image = draw_image([view(running=number % 9) for number in range(count)], "t" * 300)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert image.dtype == np.uint8


def test_the_image_shows_load_and_phase() -> None:
    idle = draw_image([view(), view()], "t")
    assert np.array_equal(idle, draw_image([view(), view()], "t"))
    previous = idle
    for running, waiting in ((1, 0), (8, 0), (8, 3), (8, 200)):
        image = draw_image([view(), view(running=running, waiting=waiting)], "t")
        assert not np.array_equal(image, previous)
        coloured = (image.max(axis=-1).astype(int) - image.min(axis=-1)) > 60
        before = (previous.max(axis=-1).astype(int) - previous.min(axis=-1)) > 60
        assert coloured.sum() > before.sum(), "more load, more colour"
        previous = image
    for phase in ("pending", "draining", "down", "gone"):
        assert not np.array_equal(draw_image([view(), view(phase)], "t"), idle)


def test_glyphs() -> None:
    assert text_pixels("").shape == (GLYPH_HEIGHT, 0)
    assert text_pixels("ab1").shape == (GLYPH_HEIGHT, 3 * GLYPH_WIDTH)
    assert np.array_equal(text_pixels("ab"), text_pixels("AB"))
    assert not text_pixels(" €").any()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%()+,-./:="
    drawn = {text_pixels(letter).tobytes() for letter in letters}
    assert len(drawn) == len(letters)
    pillar = text_pixels("I")
    assert pillar[:7, 2].all()


def test_an_unknown_mode_is_refused() -> None:
    assert checked_mode(None) is None
    assert checked_mode("rgb_array") == "rgb_array"
    with pytest.raises(ValueError, match="render_mode is ansi, rgb_array or None, not 'human'"):
        checked_mode("human")
