"""How often both choose the same: overall, by load, by tenant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.offpolicy.matched import Matched
from steersman.predictors import ledger as L
from steersman.predictors.load import load_now

BANDS = 3
"""Of load, with as many decisions each."""
MOST_TENANTS = 8
OTHERS = "all others"


@dataclass(frozen=True)
class Share:
    """Of some decisions."""

    name: str
    decisions: int
    agree: float
    """Share on which both choose the same."""


@dataclass(frozen=True)
class Agreement:
    """All of it."""

    overall: Share
    by_load: tuple[Share, ...]
    by_tenant: tuple[Share, ...]
    """The busiest, and all others together."""
    fallbacks: dict[str, float]
    """Share of decisions that the challenger's guard would have overruled, by reason."""


def agreement(matched: Matched) -> Agreement:
    """Of n decisions, at least one."""
    agrees, n = matched.agrees, len(matched)
    load = np.array([batch_use(record.state, record.mask) for record in matched.records])
    edges = np.quantile(load, np.linspace(0.0, 1.0, BANDS + 1))
    band = np.clip(np.searchsorted(edges, load, side="right") - 1, 0, BANDS - 1)
    bands = []
    for i in range(BANDS):
        chosen = band == i
        if chosen.any():
            bands.append(_share(f"{edges[i]:.1%} to {edges[i + 1]:.1%}", agrees[chosen]))
    tenants = np.array([record.tenant or "none" for record in matched.records])
    busiest = [name for name, _ in Counter(tenants.tolist()).most_common(MOST_TENANTS)]
    shares = [_share(name, agrees[tenants == name]) for name in busiest]
    rest = ~np.isin(tenants, busiest)
    if rest.any():
        shares.append(_share(OTHERS, agrees[rest]))
    reasons = Counter(said.fallback_reason for said in matched.opinions if said.fallback_reason)
    return Agreement(
        overall=_share("all", agrees),
        by_load=tuple(bands),
        by_tenant=tuple(shares),
        fallbacks={reason: count / n for reason, count in reasons.most_common()},
    )


def batch_use(state: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    """How full the candidates' batches are on average, waiting requests included; 1 is full."""
    rows = state[mask] if mask.any() else state
    return float((load_now(rows).queue / rows[:, L.MAX_NUM_SEQS]).mean())


def _share(name: str, agrees: NDArray[np.bool_]) -> Share:
    return Share(name, len(agrees), float(agrees.mean()))
