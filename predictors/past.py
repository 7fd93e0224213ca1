"""What the past says of a request when it comes in: `HISTORY_FEATURES`.

`Past` follows a live service; `causal_past` gives the same for every row of a trace, using only what a
service would have known at that moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import HISTORY_FEATURES
from steersman.predictors.history import HISTORY_WIDTH, MOST_TENANTS, TenantHistory
from steersman.predictors.sessions import SessionHistory
from steersman.traces.schema import Request, ToolChoice
from steersman.traces.trace import Trace

NOMINAL_TTFT_S = 0.5
NOMINAL_TPOT_S = 0.03
"""A trace does not say when an answer ended; it is taken to end after these, times its tokens."""

CALL_WEIGHT = 4.0
CALL_SHARE = 0.5
"""Of answers that call a tool where they may, while little is known of the tenant."""
FORGET_AT = 512.0
"""Answers counted of a tenant before both of its counts are halved."""


class ToolHistory:
    """How often answers call a tool where they may, per (tenant, model). Not thread-safe; bounded."""

    def __init__(self, *, most_tenants: int = MOST_TENANTS) -> None:
        self._most_tenants = most_tenants
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def observe(self, tenant: Hashable, called: bool) -> None:
        """An answer that could call a tool did, or did not."""
        calls, answers = self._counts.pop(tenant, (0.0, 0.0))
        if answers >= FORGET_AT:
            calls, answers = 0.5 * calls, 0.5 * answers
        self._counts[tenant] = calls + called, answers + 1.0
        if len(self._counts) > self._most_tenants:
            self._counts.popitem(last=False)

    def likelihood(self, tenant: Hashable) -> float:
        """Of a call in the next such answer."""
        calls, answers = self._counts.get(tenant, (0.0, 0.0))
        return (calls + CALL_WEIGHT * CALL_SHARE) / (answers + CALL_WEIGHT)


class Past:
    """Everything that is remembered of requests that came before. Not thread-safe.

    Args:
        tenants: that remembers how long their answers were; None: a new one.
    """

    def __init__(self, tenants: TenantHistory | None = None) -> None:
        self.tenants = TenantHistory() if tenants is None else tenants
        self.sessions = SessionHistory()
        self.tools = ToolHistory()

    def begin(self, request: Request) -> tuple[float, ...]:
        """A request comes in: its `HISTORY_FEATURES`. To be called once per request, in order."""
        return self.arrive(
            request.tenant,
            request.model,
            request.session_id,
            request.arrival_s,
            request.tools,
            request.tool_choice,
        )

    def end(self, request: Request, output_tokens: int, called_tool: bool | None) -> None:
        """It ended well. `called_tool` is None where nobody looked."""
        called = -1 if called_tool is None else int(called_tool)
        self.leave(
            request.tenant,
            request.model,
            request.session_id,
            output_tokens,
            request.tools,
            request.tool_choice,
            called,
        )
        # Its quantiles are taken anew here, where nobody waits, and not when its next request comes.
        self.tenants.features(request.tenant, request.model)

    def arrive(
        self,
        tenant: Hashable,
        model: Hashable,
        session: Hashable | None,
        now_s: float,
        tools: int,
        choice: int,
    ) -> tuple[float, ...]:
        """`begin`, of a request in columns."""
        whose = (tenant, model)
        turns = _NO_SESSION if session is None else self.sessions.begin(whose, session, now_s)
        if tools == 0 or choice == ToolChoice.NONE:
            call = 0.0
        else:
            call = 1.0 if choice == ToolChoice.REQUIRED else self.tools.likelihood(whose)
        return (*self.tenants.features(tenant, model), *turns, call)

    def leave(
        self,
        tenant: Hashable,
        model: Hashable,
        session: Hashable | None,
        output_tokens: int,
        tools: int,
        choice: int,
        called: int,
    ) -> None:
        """`end`, of a request in columns; `called` is -1 where nobody looked."""
        whose = (tenant, model)
        self.tenants.observe(tenant, model, output_tokens)
        if session is not None:
            self.sessions.end(whose, session, output_tokens)
        if tools > 0 and choice == ToolChoice.AUTO and called >= 0:
            self.tools.observe(whose, bool(called))


_NO_SESSION = (0.0, 0.0, 0.0)


def causal_past(trace: Trace) -> NDArray[np.float64]:
    """What `Past` would have said at each arrival of a trace, (len(trace), len(HISTORY_FEATURES)).

    Row i uses only requests that had ended by then, in the order of `ends`. O(n log n).
    """
    return _walk(trace, ends(trace), Past())


def causal_turns(trace: Trace, ended: Ends) -> NDArray[np.float64]:
    """What `causal_past` says of sessions and tools: its columns after those of the tenants."""
    return _walk(trace, ended, Past(_Nothing()))[:, HISTORY_WIDTH:]


class _Nothing(TenantHistory):
    """Remembers nothing, where only the rest is asked for."""

    def observe(self, tenant: Hashable, model: Hashable, output_tokens: int) -> None:
        pass


class Ends(NamedTuple):
    """When the answers of a trace end."""

    order: NDArray[np.int64]
    """Rows in the order in which they end."""
    before: NDArray[np.int64]
    """(n,): how many of them have ended when each row arrives."""


def ends(trace: Trace) -> Ends:
    """A trace does not tell when: each is taken to end `NOMINAL_TTFT_S + output_tokens * NOMINAL_TPOT_S`
    after it arrived. Rows of unknown output length are never seen to end."""
    rows = np.flatnonzero(trace.output_tokens >= 1)
    end_s = trace.arrival_s[rows] + NOMINAL_TTFT_S + trace.output_tokens[rows] * NOMINAL_TPOT_S
    in_order = np.lexsort((rows, end_s))
    return Ends(rows[in_order], np.searchsorted(end_s[in_order], trace.arrival_s, side="right"))


def _walk(trace: Trace, ended: Ends, past: Past) -> NDArray[np.float64]:
    """What is said of every row when it arrives, each answer that has ended told before."""
    sessions = [None if code < 0 else code for code in trace.session.tolist()]
    known = list(zip(trace.tenant.tolist(), trace.model.tolist(), sessions, strict=True))
    tools, choices = trace.tools.tolist(), trace.tool_choice.tolist()
    outputs, called = trace.output_tokens.tolist(), trace.called_tool.tolist()
    order: list[int] = ended.order.tolist()
    told = 0
    said = np.zeros((len(trace), len(HISTORY_FEATURES)))
    for row, (arrival_s, before) in enumerate(
        zip(trace.arrival_s.tolist(), ended.before.tolist(), strict=True)
    ):
        for left in order[told:before]:
            past.leave(*known[left], outputs[left], tools[left], choices[left], called[left])
        told = before
        said[row] = past.arrive(*known[row], arrival_s, tools[row], choices[row])
    return said
