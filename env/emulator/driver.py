"""Plays the cluster model's engine against the wall clock.

The engine says when its next iteration ends; a timer of the event loop wakes the driver then, and every
token of that iteration goes to its stream in the same turn of the loop. Nothing runs while it is idle.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from steersman.env.emulator.clock import EngineClock
from steersman.env.emulator.metrics import MetricsPage
from steersman.env.emulator.settings import EmulatorSettings, Faults
from steersman.env.emulator.token_stream import Ending, TokenStream
from steersman.env.engine_live import LiveEngine, LiveMetrics
from steersman.traces.schema import HardwareProfile

TIMER_STEP_S = 0.001
"""What the event loop's timers resolve; sleeping less would wake too early, and again."""


class EngineDriver:
    """Owns the engine, its clock and the streams it feeds. Lives in one event loop."""

    def __init__(self, profile: HardwareProfile, model: str, settings: EmulatorSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = LiveEngine(
            profile, slowdown=settings.slowdown, prefix_cache=settings.prefix_cache, seed=settings.seed
        )
        self._speed = settings.speed
        self._clock = EngineClock(self._loop.time(), settings.speed)
        self._streams: dict[int, TokenStream] = {}
        self._ids: dict[TokenStream, int] = {}
        self._queued: dict[int, TokenStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thaw: asyncio.TimerHandle | None = None
        self._running = asyncio.Event()
        self._running.set()
        self.error: Exception | None = None
        """What stopped the engine for good; a healthy one has none."""
        self.page = MetricsPage(profile, model, self._read)
        self.apply(settings.faults)

    @property
    def token_limit(self) -> int:
        """Longest prompt plus output, from context window and KV cache."""
        return self._engine.token_limit

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        hashes: Sequence[int],
        priority: int,
        *,
        interval: int,
    ) -> TokenStream:
        """Queue a request in the engine; its tokens come through the stream."""
        now_s = self._advance()
        stream = TokenStream(output_tokens, now_s, interval=interval)
        if self.error is not None:
            stream.end(Ending.BROKEN)
            return stream
        handle = self._engine.submit(now_s, prompt_tokens, output_tokens, hashes, priority)
        self._streams[handle] = stream
        self._ids[stream] = handle
        self._queued[handle] = stream
        self._note_admissions(now_s)
        self.page.prompt_tokens += prompt_tokens
        self._set_timer()
        return stream

    def drop(self, stream: TokenStream) -> None:
        """Forget a stream; what it has not produced yet is cancelled in the engine."""
        handle = self._ids.pop(stream, None)
        if handle is None:
            return
        del self._streams[handle]
        self._queued.pop(handle, None)
        self.page.finished["abort"] += 1
        now_s = self._advance()
        if self.error is None:
            self._engine.cancel(handle, now_s)
        self._set_timer()

    def apply(self, faults: Faults) -> None:
        """Slow down or freeze, from now on; replaces what was asked for before."""
        self._advance()
        if self._thaw is not None:
            self._thaw.cancel()
        rate = self._speed / faults.slowdown
        if faults.freeze_s > 0:
            self._running.clear()
            self._clock.set_rate(self._loop.time(), 0.0)
            self._thaw = self._loop.call_later(faults.freeze_s, self._go_on, rate)
        else:
            self._go_on(rate)
        self._set_timer()

    async def thawed(self) -> None:
        """Return at once, or when a freeze ends."""
        if not self._running.is_set():
            await self._running.wait()

    def close(self) -> None:
        """Stop: every stream ends."""
        for handle in (self._timer, self._thaw):
            if handle is not None:
                handle.cancel()
        self._running.set()
        for stream in self._streams.values():
            stream.end(Ending.BROKEN)

    def _go_on(self, rate: float) -> None:
        self._clock.set_rate(self._loop.time(), rate)
        self._running.set()
        self._set_timer()

    def _read(self) -> LiveMetrics:
        self._advance()
        self._set_timer()
        return self._engine.metrics()

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        self._set_timer()

    def _advance(self) -> float:
        """Bring the engine to the present, hand out what it produced, and tell the engine's time.

        Whoever goes on with the engine at once uses that time: at a later one it might produce tokens
        that nobody would fetch.
        """
        now_s = self._clock.engine_s(self._loop.time())
        if self.error is not None:
            return now_s
        try:
            self._deliver(now_s)
        except Exception as error:
            # Without this every answer would hang: end them, and let health checks tell.
            self.error = error
            self.close()
            raise
        return now_s

    def _deliver(self, now_s: float) -> None:
        page = self.page
        events = self._engine.advance(now_s)
        if self._queued:
            self._note_admissions(now_s)
        for handle, at_s, finished in events:
            stream = self._streams.get(handle)
            if stream is None:
                continue
            elapsed_s = (at_s - stream.last_token_s) / self._speed
            stream.last_token_s = at_s
            page.generation_tokens += 1
            if stream.produced:
                page.inter_token.observe(elapsed_s)
            else:
                page.ttft.observe(elapsed_s)
                stream.cached_tokens = self._engine.cached_tokens(handle)
            stream.give()
            if finished:
                page.e2e.observe((at_s - stream.submitted_s) / self._speed)
                del self._streams[handle]
                del self._ids[stream]

    def _note_admissions(self, now_s: float) -> None:
        """Tell the page how long those waited whom the last iteration took in."""
        for handle in [queued for queued in self._queued if not self._engine.is_waiting(queued)]:
            stream = self._queued.pop(handle)
            self.page.queue_time.observe((now_s - stream.submitted_s) / self._speed)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_s = self._clock.wall_s(self._engine.next_event_s)
        if at_s < math.inf and self.error is None:
            wait_s = max(at_s - self._loop.time(), 0.0)
            # Rounded up to the timer's step, so that the event is due when the timer fires.
            steps = math.ceil(wait_s / TIMER_STEP_S)
            self._timer = self._loop.call_later(steps * TIMER_STEP_S, self._tick)
