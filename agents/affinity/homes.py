"""Where groups are at home: a bounded memory that forgets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Home = TypeVar("Home")


class Homes(Generic[Home]):
    """Remembers the `most` groups heard of last, each until `timeout_s` after it was."""

    def __init__(self, timeout_s: float, most: int) -> None:
        self._timeout_s = timeout_s
        self._most = most
        self._known: OrderedDict[Hashable, tuple[Home, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, group: Hashable, now_s: float) -> Home | None:
        """The home of a group, None if it has none. Asking does not prolong the stay."""
        known = self._known.get(group)
        if known is None:
            return None
        home, heard_s = known
        if now_s - heard_s > self._timeout_s:
            del self._known[group]
            return None
        return home

    def bind(self, group: Hashable, home: Home, now_s: float) -> None:
        """From now on the group is at home there."""
        self._known[group] = home, now_s
        self._known.move_to_end(group)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self, group: Hashable) -> None:
        """It has none any more."""
        self._known.pop(group, None)
