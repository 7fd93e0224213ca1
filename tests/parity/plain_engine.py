"""vLLM v1's scheduling once more, in plain Python, without prefix caching: what the engine must equal.

Written for reading: lists and objects, no running totals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from steersman.traces.schema import HardwareProfile


@dataclass(eq=False)
class Sequence:
    number: int
    arrival_s: float
    prompt: int
    output: int
    priority: int
    produced: int = 0
    computed: int = 0
    scheduled: int = 0
    blocks: int = 0
    preemptions: int = 0
    first_s: float = math.nan
    end_s: float = math.nan

    @property
    def total(self) -> int:
        return self.prompt + self.produced


class PlainEngine:
    def __init__(self, profile: HardwareProfile, slowdown: float, arrivals: list[Sequence]) -> None:
        self.profile = profile
        self.slowdown = slowdown
        self.arrivals = sorted(arrivals, key=lambda s: s.arrival_s)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.blocks = profile.kv_capacity_tokens // profile.block_tokens

    def run(self) -> None:
        now_s = 0.0
        while self.arrivals or self.waiting or self.running:
            while self.arrivals and self.arrivals[0].arrival_s < now_s:
                self.waiting.append(self.arrivals.pop(0))
            if not self.waiting and not self.running:
                now_s = self.arrivals[0].arrival_s
                # Whoever comes first to an idle engine starts an iteration alone.
                self.waiting.append(self.arrivals.pop(0))
            self.schedule()
            now_s += self.duration_s()
            self.produce(now_s)

    def free(self) -> int:
        return self.blocks - sum(s.blocks for s in self.running)

    def needed(self, s: Sequence, tokens: int) -> int:
        return max(math.ceil((s.computed + tokens) / self.profile.block_tokens) - s.blocks, 0)

    def preempt(self, s: Sequence) -> None:
        self.running.remove(s)
        s.blocks = s.computed = s.scheduled = 0
        s.preemptions += 1
        self.waiting.insert(0, s)

    def schedule(self) -> None:
        preempted = False
        for s in self.running:
            s.scheduled = 0
        for s in list(self.running):
            if s not in self.running:
                continue
            budget = self.profile.max_batched_tokens - sum(o.scheduled for o in self.running)
            tokens = min(s.total - s.computed, budget)
            while s in self.running and self.needed(s, tokens) > self.free():
                worst = max(o.priority for o in self.running)
                self.preempt([o for o in self.running if o.priority == worst][-1])
                preempted = True
            if s in self.running:
                s.blocks += self.needed(s, tokens)
                s.scheduled = tokens
        while self.waiting and not preempted and len(self.running) < self.profile.max_num_seqs:
            budget = self.profile.max_batched_tokens - sum(o.scheduled for o in self.running)
            s = min(self.waiting, key=lambda o: o.priority)  # the first of the lowest
            tokens = min(s.total, budget)
            if budget == 0 or self.needed(s, tokens) > self.free():
                break
            self.waiting.remove(s)
            s.blocks = self.needed(s, tokens)
            s.scheduled = tokens
            self.running.append(s)

    def duration_s(self) -> float:
        p = self.profile
        active = [s for s in self.running if s.scheduled]
        decoding = [s for s in active if s.produced and s.scheduled == 1]
        prefills = [s for s in active if s not in decoding]
        base_s = self.read_s(len(decoding))
        if prefills:
            tokens = sum(s.scheduled for s in prefills)
            squares = sum(s.scheduled * (s.scheduled + 2 * s.computed) for s in prefills)
            prefill_s = p.prefill_base_s + p.prefill_token_s * tokens + p.prefill_token2_s * squares
            base_s = max(base_s, prefill_s)
        context = sum(s.computed + 1 for s in decoding)
        decode_s = p.decode_seq_s * len(decoding) + p.decode_context_s * context
        return self.slowdown * (p.host_overhead_s + decode_s + base_s)

    def read_s(self, decoding: int) -> float:
        curve = self.profile.decode_base_by_batch_s
        if not curve or decoding <= curve[0][0]:
            return curve[0][1] if curve else self.profile.decode_base_s
        for (low, low_s), (high, high_s) in pairwise(curve):
            if decoding <= high:
                return low_s + (high_s - low_s) * (decoding - low) / (high - low)
        return curve[-1][1]

    def produce(self, now_s: float) -> None:
        for s in list(self.running):
            s.computed += s.scheduled
            if s.scheduled and s.computed == s.total:
                s.produced += 1
                if s.produced == 1:
                    s.first_s = now_s
                if s.produced == s.output:
                    s.end_s = now_s
                    self.running.remove(s)
