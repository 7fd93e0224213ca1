"""The router reads the engines' metrics, every now and then."""

from __future__ import annotations

import numpy as np

from steersman.env.jit import compiled, inner
from steersman.env.layout import DRAINING
from steersman.env.tables import common_in, ledger_in, replicas_in
from steersman.predictors import ledger as plain_ledger

_on_scrape = compiled(plain_ledger).on_scrape


@inner
def scrape(memory: int, replica: int) -> None:
    """The router reads the engine's metrics, or fails to."""
    owner = replicas_in(memory)[replica]
    at_s = owner.next_scrape_s
    owner.scrapes += 1
    up = owner.healthy == 1 and owner.phase <= DRAINING
    if up and not _lost(memory, replica, owner.scrapes):
        usage = owner.held_blocks / owner.kv_blocks
        running = float(owner.running + owner.in_flight)
        _on_scrape(
            ledger_in(memory)[replica],
            at_s,
            running,
            float(owner.waiting),
            usage,
            float(owner.prefix_queries),
            float(owner.prefix_hits),
        )
    owner.next_scrape_s = at_s + _interval_s(memory, replica, owner.scrapes)


@inner
def skip_scrapes(memory: int, replica: int, until_s: float) -> None:
    """Leave out all scrapes by `until_s` but the last that succeeds: it replaces what they found."""
    owner = replicas_in(memory)[replica]
    at_s = owner.next_scrape_s
    scrapes = owner.scrapes
    while at_s <= until_s:
        if not _lost(memory, replica, scrapes + 1):
            owner.next_scrape_s = at_s
            owner.scrapes = scrapes
        scrapes += 1
        at_s += _interval_s(memory, replica, scrapes)


@inner
def _lost(memory: int, replica: int, number: int) -> bool:
    cluster = common_in(memory)
    return bool(
        cluster.scrape_loss > 0.0 and _uniform(cluster.seed, replica, 2 * number) < cluster.scrape_loss
    )


@inner
def _interval_s(memory: int, replica: int, number: int) -> float:
    """Between a scrape and the next."""
    cluster = common_in(memory)
    if cluster.scrape_jitter == 0.0:
        return float(cluster.scrape_interval_s)
    spread = 2.0 * _uniform(cluster.seed, replica, 2 * number + 1) - 1.0
    interval_s: float = cluster.scrape_interval_s * (1.0 + cluster.scrape_jitter * spread)
    return interval_s


@inner
def _uniform(seed: int, stream: int, index: int) -> float:
    """The `index`-th number in [0, 1) of a stream: SplitMix64, so that order of use does not matter."""
    z = np.uint64(seed) + np.uint64(stream + 1) * np.uint64(0xD1B54A32D192ED03)
    z = z + np.uint64(index) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)
