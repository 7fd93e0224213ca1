"""How outcomes become a canary's figures: pure functions on its state."""

from __future__ import annotations

from steersman.agents.sequential import BlockTest, RateTest
from steersman.serving.canary.finding import FROZEN, LEAST_FOR_LIMIT, rises_of
from steersman.serving.canary.histogram import quantile_s
from steersman.serving.canary.settings import CanarySettings, Split
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import P99, PRIORS, Block, CanaryState
from steersman.serving.canary.tally import (
    ARMS,
    CHALLENGER,
    CHAMPION,
    E2E,
    GUARDS,
    TTFT,
    Tally,
    add_buckets,
    add_counts,
)


def absorb(state: CanaryState, settings: CanarySettings, tally: Tally, now_unix_s: float) -> None:
    """Bet on a batch of outcomes of one router, then learn from it."""
    share = share_of(state, settings)
    for guard in GUARDS:
        n_a, k_a = tally.counts[CHALLENGER][guard]
        n_b, k_b = tally.counts[CHAMPION][guard]
        test = state.tests.setdefault(guard, RateTest(PRIORS[guard]))
        if share >= 1.0 and n_b == 0:
            test.add_alone(n_a, k_a, allowed=rises_of(settings).get(guard, 0.0))
        else:
            test.add(n_a, k_a, n_b, k_b)
        if 1.0 - settings.control <= share < 1.0:
            for tests in (state.last, state.frozen):
                tests.setdefault(guard, RateTest(PRIORS[guard], b=list(test.b)))
            state.last[guard].add(n_a, k_a, n_b, k_b)
            if guard in FROZEN:
                state.frozen[guard].add_alone(n_a, k_a, allowed=rises_of(settings)[guard])
    _absorb_blocks(state, settings, tally, now_unix_s)
    figures = state.figures
    for arm in ARMS:
        add_counts(figures.seen[arm], tally.seen[arm])
        for guard, buckets in tally.latencies[arm].items():
            add_buckets(figures.latencies[arm][guard], buckets)
    for guard in (TTFT, E2E) if share < 1.0 else ():
        known = figures.latencies[CHAMPION][guard]
        if sum(known.values()) >= LEAST_FOR_LIMIT:
            state.limits_s[guard] = quantile_s(known, P99)


def _absorb_blocks(
    state: CanaryState, settings: CanarySettings, tally: Tally, now_unix_s: float
) -> None:
    known = {(block.index, block.share, block.challenger): block for block in state.blocks}
    for lot, counts in tally.blocks.items():
        block = known.get((lot.index, lot.share, lot.challenger))
        if block is None:
            block = Block(index=lot.index, share=lot.share, challenger=lot.challenger)
            known[lot.index, lot.share, lot.challenger] = block
            state.blocks.append(block)
        add_counts(block.counts, counts)
    if settings.split is not Split.SWITCHBACK:
        return
    # What began in a stretch has as long again to end.
    open_from = int(now_unix_s // settings.block_s) - 1
    over = sorted((b for b in state.blocks if b.index < open_from), key=lambda b: b.index)
    state.blocks = [b for b in state.blocks if b.index >= open_from]
    for block in over:
        # Routers that disagreed about a stretch (a new stage, just then) have spoilt it.
        if sum(other.index == block.index for other in over) > 1 or not 0.0 < block.share < 1.0:
            continue
        for guard, (outcomes, bad) in block.counts.items():
            if outcomes:
                test = state.block_tests.setdefault(guard, BlockTest())
                test.add(bad / outcomes, block.share, is_a=block.challenger)
