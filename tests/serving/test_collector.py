from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from steersman.serving.collector import YOUNG_OBJECTS, settle


@pytest.fixture
def collector() -> Iterator[None]:
    """As it was, afterwards."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("collector")
def test_cycles_are_still_collected_but_not_for_every_few_requests() -> None:
    settle()
    assert gc.get_freeze_count() > 0
    gone = weakref.ref(Cycle())
    few = [[i] for i in range(1_000)]
    assert gone() is not None
    many = [[i] for i in range(YOUNG_OBJECTS)]
    assert gone() is None
    assert len(few) + len(many) > YOUNG_OBJECTS
