"""One emulated replica: everything its endpoints share."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from steersman.env.emulator.answer_length import AnswerLengths
from steersman.env.emulator.driver import EngineDriver
from steersman.env.emulator.protocol import ApiError
from steersman.env.emulator.settings import EmulatorSettings, Faults
from steersman.env.engine_live import LiveEngine
from steersman.env.profiles import load_profile, with_limits
from steersman.predictors.tokens import CalibratedCounter
from steersman.traces.schema import HardwareProfile


class Backend:
    """Made before the server runs; `start` gives it an engine, inside the event loop.

    Raises:
        ConfigError: the settings name no known profile.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self.settings = settings
        self.profile = with_limits(
            load_profile(settings.profile),
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
        )
        self.model = settings.model or self.profile.model.name
        self.replica_id = settings.replica_id or self.profile.name
        self.created = int(time.time())
        self.counter = CalibratedCounter()
        self.lengths = AnswerLengths(settings.lengths, settings.seed)
        self.faults = settings.faults
        self._rng = np.random.default_rng((settings.seed, 1))
        self._driver: EngineDriver | None = None

    @property
    def driver(self) -> EngineDriver:
        """The running engine."""
        if self._driver is None:
            raise RuntimeError("the backend is not started")
        return self._driver

    def start(self) -> None:
        """Compile the engine and begin; blocks until it can answer."""
        warm_up(self.profile)
        self._driver = EngineDriver(self.profile, self.model, self.settings)

    def close(self) -> None:
        """End every answer in flight."""
        if self._driver is not None:
            self._driver.close()

    def set_faults(self, faults: Faults) -> None:
        """Break or mend, from now on."""
        self.faults = faults
        self.driver.apply(faults)

    def fail_at_random(self) -> None:
        """Raises:
        ApiError: 500, with the probability that the faults ask for.
        """
        if self.faults.fail_rate > 0 and self._rng.random() < self.faults.fail_rate:
            raise ApiError(500, "InternalServerError", "emulated failure (fail_rate)")

    def rubbish_at_random(self) -> tuple[bytes, bytes] | None:
        """Content type and body of what is no answer, with the probability that the faults ask for."""
        if self.faults.rubbish_rate > 0 and self._rng.random() < self.faults.rubbish_rate:
            return RUBBISH[int(self._rng.integers(len(RUBBISH)))]
        return None


RUBBISH = (
    (b"text/html", b"<html><body>Welcome to nginx!</body></html>"),
    (b"application/json", b'{"id":"chatcmpl-0","object":"chat.comp'),
    (b"text/event-stream", b"Traceback (most recent call last):\n  CUDA error: device-side assert"),
)


def warm_up(profile: HardwareProfile) -> None:
    """Play a request and a cancellation through a spare engine, so that everything is compiled."""
    engine = LiveEngine(replace(profile, name="warm-up"))
    engine.submit(0.0, 64, 8, (1, 2, 3), 0)
    handle = engine.submit(0.0, 64, 8, (1, 2, 3), 0)
    engine.cancel(handle, 0.0)
    engine.advance(60.0)
    engine.metrics()
