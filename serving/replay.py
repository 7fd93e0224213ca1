"""Replays a trace against an OpenAI endpoint over HTTP, as its users would have sent it.

Arrivals are open-loop: a request is sent at its time, however slow the answers are. Later turns of a
session are closed-loop: sent their think time after the turn before has ended.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SecretStr, field_validator

from steersman.predictors import ledger
from steersman.predictors.objectives import TPOT_SLO_S, TTFT_SLO_FLOOR_S, slo_columns
from steersman.serving.endpoint import find_model
from steersman.serving.replay_request import Exchange, Sent, send
from steersman.serving.replay_result import ReplayResult
from steersman.traces.schema import HardwareProfile, Status
from steersman.traces.settings import Settings
from steersman.traces.trace import Trace

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before a server (uvicorn: 5 s) drops them under a request's feet."""

Progress = Callable[[int, int], None]
"""Called with (requests ended, of those not ended well) when sending begins, and after each."""


class ReplaySettings(Settings):
    """How to replay; every time in the trace's own seconds unless it says wall."""

    url: str = Field(description="Endpoint, with or without a trailing /v1.")
    model: str = Field(
        default="", description="Model to ask for; empty: the first that the endpoint lists."
    )
    speed: float = Field(default=1.0, gt=0, description="Trace seconds per wall second.")
    concurrency: int = Field(default=1024, ge=1, description="Requests in flight at once, at most.")
    timeout_s: float = Field(default=600.0, gt=0, description="Wall seconds a request may take in all.")
    connect_timeout_s: float = Field(
        default=5.0, gt=0, description="Wall seconds to reach the endpoint."
    )
    force_lengths: bool = Field(
        default=False,
        description="Set max_tokens to the recorded output and ignore_eos, so that a real vLLM answers "
        "with as many tokens. The router sees that limit, which makes lengths easy to predict. Emulated "
        "backends need none of this.",
    )
    salt: str = Field(
        default="",
        description="Prompts of two replays with the same salt are the same, so the second finds them "
        "in the prefix caches; empty: new prompts every time.",
    )
    api_key: SecretStr | None = Field(default=None, description="Sent as a bearer token.")

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url.rstrip("/").removesuffix("/v1")


def service_levels(trace: Trace, profiles: Sequence[HardwareProfile]) -> NDArray[np.float64]:
    """TTFT and TPOT objectives of every request on a pool of these replicas, (n, 2) seconds."""
    state = np.stack([ledger.new_row(profile) for profile in profiles])
    ttft_s, tpot_s = slo_columns(state, trace.input_tokens.astype(np.float64))
    return np.column_stack((ttft_s, np.full(len(trace), tpot_s)))


async def replay(
    trace: Trace,
    settings: ReplaySettings,
    *,
    slo: NDArray[np.float64] | None = None,
    on_progress: Progress | None = None,
) -> ReplayResult:
    """Send every request of the trace and wait for all answers.

    Args:
        slo: (n, 2) TTFT and TPOT objectives in seconds, see `service_levels`; None: 1 s and 50 ms.

    Raises:
        BackendError: the endpoint cannot be reached, or does not list the model. What goes wrong later
            is in the result instead.
    """
    timeout = aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=settings.connect_timeout_s)
    connector = aiohttp.TCPConnector(limit=settings.concurrency, keepalive_timeout=KEEP_ALIVE_S)
    headers = {}
    if settings.api_key is not None:
        headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
    async with aiohttp.ClientSession(
        settings.url, timeout=timeout, connector=connector, headers=headers, auto_decompress=False
    ) as client:
        model = await find_model(client, settings.url, settings.model)
        run = _Run(trace, client, model, settings, on_progress)
        wall_s = await run.to_the_end()
    objectives = np.tile((TTFT_SLO_FLOOR_S, TPOT_SLO_S), (len(trace), 1)) if slo is None else slo
    return _result(trace, settings, model, wall_s, run, objectives)


class _Run:
    """One replay in flight."""

    def __init__(
        self,
        trace: Trace,
        client: aiohttp.ClientSession,
        model: str,
        settings: ReplaySettings,
        on_progress: Progress | None,
    ) -> None:
        self._trace = trace
        salt = settings.salt or secrets.token_hex(8)
        self._exchange = Exchange(client, model, force_lengths=settings.force_lengths, salt=salt)
        self._speed = settings.speed
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._on_progress = on_progress
        self._children: dict[int, list[int]] = {}
        for child in np.flatnonzero(trace.parent >= 0).tolist():
            self._children.setdefault(int(trace.parent[child]), []).append(child)
        self._start_s = 0.0
        self._failed = 0
        self.sent: dict[int, Sent] = {}
        self.scheduled_s = np.full(len(trace), np.nan)
        self.lateness_s = np.full(len(trace), np.nan)

    async def to_the_end(self) -> float:
        """Send everything; wall seconds it took."""
        self._tell()
        self._start_s = time.monotonic()
        roots = np.flatnonzero(self._trace.parent < 0)
        first_s = float(self._trace.arrival_s[0]) if len(roots) else 0.0
        async with asyncio.TaskGroup() as tasks:
            for row in roots.tolist():
                due_s = self._start_s + (float(self._trace.arrival_s[row]) - first_s) / self._speed
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
                tasks.create_task(self._one(row, due_s, tasks))
        return time.monotonic() - self._start_s

    async def _one(self, row: int, due_s: float, tasks: asyncio.TaskGroup) -> None:
        self.scheduled_s[row] = due_s - self._start_s
        request = self._trace.request(row)
        async with self._slots:
            self.lateness_s[row] = time.monotonic() - due_s
            sent = await send(self._exchange, request)
        self.sent[row] = sent
        self._failed += sent.status is not Status.OK
        self._tell()
        for child in self._children.get(row, ()):
            next_s = time.monotonic() + float(self._trace.think_time_s[child]) / self._speed
            tasks.create_task(self._later(child, next_s, tasks))

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self.sent), self._failed)

    async def _later(self, row: int, due_s: float, tasks: asyncio.TaskGroup) -> None:
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
        await self._one(row, due_s, tasks)


def _result(
    trace: Trace,
    settings: ReplaySettings,
    model: str,
    wall_s: float,
    run: _Run,
    objectives: NDArray[np.float64],
) -> ReplayResult:
    sent = [run.sent[row] for row in range(len(trace))]

    def column(name: str, dtype: Any = np.float64) -> NDArray[Any]:
        return np.array([getattr(answer, name) for answer in sent], dtype=dtype)

    return ReplayResult(
        name=trace.name,
        url=settings.url,
        model=model,
        wall_s=wall_s,
        request_id=trace.request_ids,
        scheduled_s=run.scheduled_s,
        lateness_s=run.lateness_s,
        ttft_s=column("ttft_s"),
        tpot_s=column("tpot_s"),
        e2e_s=column("e2e_s"),
        input_tokens=trace.input_tokens,
        output_tokens=column("output_tokens", np.int64),
        wanted_output_tokens=trace.output_tokens,
        ttft_slo_s=objectives[:, 0],
        tpot_slo_s=objectives[:, 1],
        status=tuple(answer.status for answer in sent),
        http_status=column("http_status", np.int64),
        began=column("began", np.bool_),
        replica=tuple(answer.replica for answer in sent),
        fallback=tuple(answer.fallback for answer in sent),
        error=tuple(answer.error for answer in sent),
    )
