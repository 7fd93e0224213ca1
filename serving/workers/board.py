"""What every worker has in flight at every replica, in memory that all of them see.

A worker's own account of a replica (`predictors/ledger.py`) says nothing of what the others have sent
there since the last scrape. So each keeps its fleet's matrix on this board, and adds the others'
accounts to its own when it decides. Nobody writes where another one writes, and a number that changes
while it is read is as old as one that changes just after: there is no lock.

The engines' metrics are scraped by each worker for itself. The others' account since *their* last scrape
is added to what was running at one's own, so dispatches between the two count twice or not at all: at
most what one scrape interval brings.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L

ACCOUNT = slice(L.INFLIGHT, L.TOKENS_SINCE_SCRAPE + 1)
"""Columns that add up over workers."""


class Board:
    """Made before the workers are forked, with a seat for each that may live at the same time.

    Args:
        seats: how many.
        rows: replicas of each.
    """

    def __init__(self, seats: int, rows: int) -> None:
        self.seats = seats
        width = L.STATE_WIDTH
        self._memory = mmap.mmap(-1, 8 * seats * (rows * (width + 1) + 1))
        cells = np.frombuffer(self._memory, dtype=np.float64)
        state, rest = np.split(cells, [seats * rows * width])
        self.state = state.reshape(seats, rows, width)
        names, versions = np.split(rest.view(np.int64), [seats * rows])
        self.names = names.reshape(seats, rows)
        """Keys of the replicas in the rows; 0 for none."""
        self.versions = versions
        """Of each seat's names."""

    def clear(self, seat: int) -> None:
        """Whoever sat there is gone, and so is what it had in flight."""
        self.names[seat] = 0
        self.versions[seat] += 1
        self.state[seat] = 0.0


class Seat:
    """One worker's place at a board."""

    def __init__(self, board: Board, seat: int) -> None:
        self._board = board
        self._seat = seat
        self._known: dict[tuple[int, tuple[str, ...]], tuple[int, NDArray[np.intp]]] = {}
        board.clear(seat)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """(rows, STATE_WIDTH), the worker's own."""
        matrix: NDArray[np.float64] = self._board.state[self._seat]
        return matrix

    def name(self, row: int, replica_id: str) -> None:
        """A row belongs to this replica from now on; to none if that is empty."""
        self._board.names[self._seat, row] = _key(replica_id) if replica_id else 0
        self._board.versions[self._seat] += 1

    def others(self, ids: tuple[str, ...]) -> NDArray[np.float64]:
        """(n, account columns): what all other workers have at these replicas."""
        board = self._board
        total = np.zeros((len(ids), ACCOUNT.stop - ACCOUNT.start))
        for other in range(board.seats):
            if other != self._seat:
                rows = self._rows(other, ids)
                here = rows >= 0
                total[here] += board.state[other, rows[here], ACCOUNT]
        return total

    def _rows(self, other: int, ids: tuple[str, ...]) -> NDArray[np.intp]:
        """Where another worker has these replicas; -1 where it has them not."""
        version = int(self._board.versions[other])
        known = self._known.get((other, ids))
        if known is not None and known[0] == version:
            return known[1]
        if len(self._known) > 64 * self._board.seats:
            self._known.clear()  # of pools that are no more
        places = {int(key): row for row, key in enumerate(self._board.names[other].tolist()) if key}
        rows = np.array([places.get(_key(name), -1) for name in ids], dtype=np.intp)
        self._known[other, ids] = version, rows
        return rows


def _key(replica_id: str) -> int:
    return int.from_bytes(blake2b(replica_id.encode(), digest_size=8).digest(), "big", signed=True) or 1
