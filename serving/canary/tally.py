"""What a router has seen of both arms since it last told."""

from __future__ import annotations

from dataclasses import dataclass, field

from steersman.serving.canary.histogram import bucket

CHAMPION = "champion"
CHALLENGER = "challenger"
ARMS = (CHAMPION, CHALLENGER)

ERRORS = "errors"
TTFT = "ttft"
E2E = "e2e"
MISSED = "missed"
GUARDS = (ERRORS, TTFT, E2E, MISSED)
"""What is guarded: share of failures, of latencies above the champion's p99, and of requests that failed
or missed an objective of theirs."""

Counts = dict[str, list[int]]
"""Guard → [outcomes, bad ones]."""


def no_counts() -> Counts:
    """Nothing yet."""
    return {guard: [0, 0] for guard in GUARDS}


Latencies = dict[str, dict[str, dict[int, int]]]
"""Arm → guard → bucket → outcomes."""


def no_latencies() -> Latencies:
    """Nothing yet."""
    return {arm: {TTFT: {}, E2E: {}} for arm in ARMS}


@dataclass(frozen=True)
class Lot:
    """A stretch of time that was given to one arm."""

    index: int
    """Of stretches since 1970."""
    share: float
    """Probability with which it went to the challenger."""
    challenger: bool


@dataclass
class Tally:
    """Outcomes by arm and guard."""

    counts: dict[str, Counts] = field(default_factory=lambda: {arm: no_counts() for arm in ARMS})
    """What the tests are fed with: each unit can fare badly only once."""
    seen: dict[str, Counts] = field(default_factory=lambda: {arm: no_counts() for arm in ARMS})
    """All outcomes, for the figures."""
    latencies: Latencies = field(default_factory=no_latencies)
    blocks: dict[Lot, Counts] = field(default_factory=dict)
    """Of a switchback."""

    def judge(self, arm: str, guard: str, *, bad: bool, lot: Lot | None) -> None:
        """An outcome for the tests."""
        counts = self.counts[arm] if lot is None else self.blocks.setdefault(lot, no_counts())
        counts[guard][0] += 1
        counts[guard][1] += bad

    def see(self, arm: str, guard: str, *, bad: bool) -> None:
        """An outcome for the figures."""
        self.seen[arm][guard][0] += 1
        self.seen[arm][guard][1] += bad

    def measure(self, arm: str, guard: str, seconds: float) -> None:
        """A latency for the figures."""
        buckets, index = self.latencies[arm][guard], bucket(seconds)
        buckets[index] = buckets.get(index, 0) + 1

    def add(self, other: Tally) -> None:
        """Add another one's."""
        for arm in ARMS:
            add_counts(self.counts[arm], other.counts[arm])
            add_counts(self.seen[arm], other.seen[arm])
            for guard, buckets in other.latencies[arm].items():
                add_buckets(self.latencies[arm][guard], buckets)
        for lot, counts in other.blocks.items():
            add_counts(self.blocks.setdefault(lot, no_counts()), counts)


def add_counts(to: Counts, more: Counts) -> None:
    """Add in place."""
    for guard, (outcomes, bad) in more.items():
        known = to.get(guard, [0, 0])  # what was kept by an earlier version may lack one
        to[guard] = [known[0] + outcomes, known[1] + bad]


def add_buckets(to: dict[int, int], more: dict[int, int]) -> None:
    """Add in place."""
    for index, count in more.items():
        to[index] = to.get(index, 0) + count
