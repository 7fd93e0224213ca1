"""One request's way through the router, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from steersman.serving import headers as H
from steersman.serving.intake import Intake
from steersman.serving.interrupt import Interrupt, Reason
from steersman.serving.outlet import Outlet
from steersman.serving.replica import Replica
from steersman.serving.router import Prepared, Route
from steersman.serving.tap import StreamTap, Usage
from steersman.traces.schema import Request, Status

Headers = list[tuple[bytes, bytes]]

OVERTAKEN, GIVEN_UP = "overtaken", "given_up"
"""Of two attempts at once: the other one answered first; the request came to an end before any did."""


@dataclass(slots=True)
class Answer:
    """A replica's answer of which all is here."""

    status: int
    headers: Headers
    body: bytes


@dataclass(slots=True, frozen=True)
class Tried:
    """An attempt that is over, as it was asked for then: another model may have to stand in later."""

    route: Route
    request: Request
    stands_in_for: str
    reason: str
    """Why it was not the last, in a word; see `OVERTAKEN` and `GIVEN_UP` for those that did not fail."""

    @property
    def failed(self) -> bool:
        """Or else it was called off."""
        return self.reason not in {OVERTAKEN, GIVEN_UP}


@dataclass(slots=True)
class Exchange:
    """Filled in by the proxy on the way, read by the recorder at the end."""

    intake: Intake
    prepared: Prepared
    interrupt: Interrupt
    outlet: Outlet
    limit_headers: Headers = field(default_factory=list)
    """What the client is told of its limits."""
    retries: int = 0
    held_s: float = 0.0
    """From arrival until its turn came, if it had to wait for room."""
    stands_in_for: str = ""
    """The model that was asked for, where another one is to answer in its place."""
    route: Route | None = None
    """The last attempt's."""
    earlier: list[Tried] = field(default_factory=list)
    """Attempts that others followed or overtook."""
    status: Status = Status.FAILED
    http_status: int = 0
    """What the client got; 0 if nothing."""
    first_token_s: float | None = None
    end_s: float = 0.0
    usage: Usage | None = None
    output_tokens: int = 0
    called_tool: bool | None = None
    """None where nobody looked."""
    response_id: str = ""
    """Under which a replica may have stored its answer (`/v1/responses`)."""
    keep: Callable[[Exchange], None] | None = None
    """Told once that there is one."""
    reason: str = ""
    """Why it did not end well."""
    faults: list[tuple[Replica, str]] = field(default_factory=list)
    """Replicas it failed on, and how; told by the proxy, judged by `Blame`."""
    doubts: list[tuple[Replica, str]] = field(default_factory=list)
    """Those whose answers looked like none: at fault if another one answers."""
    digest: bytes = b""
    """Hash of the body, once somebody needed it."""
    answered: Callable[[Exchange], None] | None = None
    """Told once, when a replica's answer begins that is no failure of its own."""
    tap: StreamTap = field(init=False)

    def __post_init__(self) -> None:
        self.tap = self.intake.api.tap()

    @property
    def path(self) -> str:
        """Path and query, as the client wrote them; the server takes printable ASCII only."""
        path, query = self.intake.api.path, self.intake.query
        return f"{path}?{query.decode('latin-1')}" if query else path

    @property
    def streamed_tokens(self) -> int:
        """Output tokens so far, where the backend has not said."""
        return self.tap.estimated_tokens(chat=self.intake.text.chat)

    @property
    def queue_s(self) -> float:
        """From arrival until it was sent to the replica that has it, attempts before that included."""
        return self.route.dispatched_s - self.intake.arrival_s if self.route else 0.0

    def tried(self, route: Route, reason: str) -> Tried:
        """One that is over now."""
        return Tried(route, self.prepared.request, self.stands_in_for, reason)

    async def start(self, status: int, headers: Headers) -> None:
        """The status and the headers: from here on the answer is the client's."""
        self.stay()
        if self.answered is not None and status < 500:
            self.answered(self)
        self.http_status = status
        if self.limit_headers:  # a replica's own limits are not this client's
            headers = [header for header in headers if not header[0].startswith(b"x-ratelimit-")]
        headers = [*headers, *self.decision_headers(), *self.limit_headers]
        if self.outlet.is_full:  # with answers to earlier requests
            await self.outlet.drained()
        self.outlet.start(status, headers)

    async def end(self, piece: bytes = b"") -> None:
        """Send the last piece."""
        self.interrupt.disarm()
        if self.outlet.is_full:
            await self.outlet.drained()
        self.outlet.end(piece)

    async def send_whole(self, answer: Answer) -> None:
        """Send a complete answer."""
        length = (b"content-length", str(len(answer.body)).encode())
        await self.start(answer.status, [*answer.headers, length])
        await self.end(answer.body)

    def found_id(self, response_id: str) -> None:
        """The answer has this id; '' if that is not known."""
        if response_id and not self.response_id:
            self.response_id = response_id
            if self.keep is not None:
                self.keep(self)

    def leave(self) -> None:
        """Give up on the replica, of which nothing has come yet."""
        self.interrupt.fire(Reason.BACKEND_SILENT)

    def stay(self) -> None:
        """The answer begins, or the attempt is over: there is nothing to be tried elsewhere any more."""
        if self.route is not None:
            self.route.replica.waiting.discard(self.leave)

    def decision_headers(self) -> Headers:
        """What the response says of the decision."""
        headers = [(H.DECISION_HEADER, self.prepared.request.request_id.encode())]
        if self.stands_in_for:
            model = self.prepared.pool.model.encode("ascii", "replace")
            headers.append((H.DEGRADED_HEADER, b"model=" + model))
        if self.route is not None:
            decision = self.route.decision
            headers += [
                (H.REPLICA_HEADER, self.route.replica.id.encode()),
                (H.POLICY_HEADER, decision.policy.encode()),
                (H.QUEUE_HEADER, b"%.1f" % (1000.0 * self.queue_s)),
            ]
            if decision.fallback_reason:
                headers.append((H.FALLBACK_HEADER, decision.fallback_reason.encode()))
        return headers
