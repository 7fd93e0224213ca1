from __future__ import annotations

import math
import random

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.engine_live import FIRST_SLOTS, LiveEngine
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=480, max_num_seqs=6)


def test_it_is_the_clusters_engine() -> None:
    rng = random.Random(5)
    jobs = []
    at_s = 0.0
    for _ in range(60):
        at_s += rng.expovariate(60.0)
        prompt = rng.randrange(1, 300)
        hashes = tuple(rng.randrange(2) * 50 + k for k in range(prompt // 16))
        jobs.append((at_s, prompt, rng.randrange(1, 40), hashes, rng.randrange(4)))
    trace = trace_of(
        *(
            request(i, t, p, o, block_hashes=h, block_tokens=16 if h else 0, priority=c)
            for i, (t, p, o, h, c) in enumerate(jobs)
        )
    )
    cluster = Cluster(specs(PROFILE), trace)
    play(cluster)
    outcomes = cluster.outcomes()

    engine = LiveEngine(PROFILE)
    tokens: dict[int, list[float]] = {}
    events = []
    for at_s, prompt, output, hashes, priority in jobs:
        events += engine.advance(at_s)
        handle = engine.submit(at_s, prompt, output, hashes, priority)
        tokens[handle] = []
    events += engine.advance(1e6)
    for event in events:
        tokens[event.handle].append(event.at_s)
        assert event.finished == (len(tokens[event.handle]) == jobs[event.handle][2])
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    firsts, lasts = ([times[i] for times in tokens.values()] for i in (0, -1))
    assert np.allclose(firsts, outcomes.arrival_s + outcomes.ttft_s, rtol=1e-12)
    assert np.allclose(lasts, outcomes.arrival_s + outcomes.e2e_s, rtol=1e-12)
    metrics = engine.metrics()
    assert metrics.preemptions == outcomes.preemptions.sum() > 0
    assert metrics.prefix_hits == outcomes.cached_tokens.sum() > 0
    assert metrics.running == metrics.waiting == metrics.kv_usage == 0


def test_time_is_told_by_the_caller() -> None:
    engine = LiveEngine(PROFILE)
    assert engine.next_event_s == math.inf
    assert engine.advance(5.0) == []
    handle = engine.submit(5.0, 100, 2)
    first_s = engine.next_event_s
    assert first_s > 5.0
    assert engine.advance(first_s - 1e-9) == []
    assert engine.advance(first_s) == [(handle, first_s, False)]
    assert engine.metrics().running == 1
    assert engine.advance(math.inf)[-1].finished
    assert engine.next_event_s == math.inf
    assert engine.advance(engine.next_event_s) == []
    again = engine.submit(9.0, 100, 2)
    assert engine.advance(engine.next_event_s)[0].handle == again


def test_a_slow_engine_is_slow() -> None:
    ends = []
    for slowdown in (1.0, 4.0):
        engine = LiveEngine(PROFILE, slowdown=slowdown)
        engine.submit(0.0, 100, 2)
        ends.append(engine.advance(1e9)[-1].at_s)
    assert ends[1] == pytest.approx(4 * ends[0])


def test_cancelling_frees_what_is_held() -> None:
    engine = LiveEngine(PROFILE)
    handles = [engine.submit(0.0, 200, 100) for _ in range(10)]
    engine.advance(1.0)
    assert engine.metrics().running + engine.metrics().waiting == 10
    for handle in handles:
        engine.cancel(handle, 1.0)
        check_memory(engine._memory)
    engine.cancel(handles[0], 1.0)
    metrics = engine.metrics()
    assert metrics.running == metrics.waiting == metrics.kv_usage == 0
    assert engine.advance(1e9) == []


def test_the_order_of_a_random_life_leaves_nothing_behind() -> None:
    rng = random.Random(1)
    engine = LiveEngine(PROFILE)
    now_s = 0.0
    live: set[int] = set()
    ended = cancelled = 0
    for step in range(1500):
        now_s += rng.expovariate(300.0)
        hashes = [rng.randrange(3) * 1000 + k for k in range(rng.randrange(20))]
        live.add(engine.submit(now_s, 16 * len(hashes) + 5, rng.randrange(1, 40), hashes))
        if rng.random() < 0.2:
            victim = rng.choice(sorted(live))
            live.discard(victim)
            engine.cancel(victim, now_s)
            cancelled += 1
        for event in engine.advance(now_s):
            assert event.handle in live
            if event.finished:
                live.discard(event.handle)
                ended += 1
        if step % 100 == 0:
            check_memory(engine._memory)
    assert len(live) > FIRST_SLOTS, "it had to grow"
    ended += sum(event.finished for event in engine.advance(1e9))
    check_memory(engine._memory)
    assert ended + cancelled == 1500


def test_cached_tokens_are_known_once_admitted() -> None:
    engine = LiveEngine(PROFILE)
    engine.submit(0.0, 160, 1, range(10))
    engine.advance(1.0)
    handle = engine.submit(1.0, 160, 5, range(10))
    assert engine.cached_tokens(handle) == 159
    engine.advance(1e9)
    assert engine.cached_tokens(handle) == 159, "its end was told just now"
    engine.advance(1e9)
    assert engine.cached_tokens(handle) == 0


def test_what_can_never_fit_is_refused() -> None:
    engine = LiveEngine(PROFILE)
    assert engine.token_limit == 480
    with pytest.raises(ValueError, match="exceed the limit of 480"):
        engine.submit(0.0, 480, 1)
    with pytest.raises(ValueError, match="at least 1"):
        engine.submit(0.0, 10, 0)
