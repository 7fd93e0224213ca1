"""Lines of the outcome log before they are written: what a request that ended leaves behind.

A request path that is done has cold caches and other requests behind it, and the log's thread writes
many lines in a row: so the path only keeps what a line is made of, and the thread makes it. Nothing of
what is kept changes any more, and none of it is the request's body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steersman.predictors.features import REQUEST_INDEX
from steersman.predictors.latency import LATENCY_OUTPUTS
from steersman.serving.router import Prepared, Route
from steersman.traces.outcome_record import encoded, values_of
from steersman.traces.schema import Decision, Outcome, Request

NO_DECISION = Decision(-1, "")
_TTFT_SLO, _TPOT_SLO = REQUEST_INDEX["ttft_slo_s"], REQUEST_INDEX["tpot_slo_s"]


@dataclass(slots=True, eq=False)
class Ended:
    """A decision and what came of it; `OutcomeRecord` tells of the fields.

    Made on the event loop, read by another thread: `route.predicted` has been asked for before, since
    that changes what it is predicted from.
    """

    request: Request
    prepared: Prepared
    route: Route | None
    """None: nobody could be chosen."""
    outcome: Outcome
    arrival_unix_s: float
    reason: str
    affinity: str
    held_s: float
    asked_model: str
    superseded: bool = False
    text: bytes | None = None
    """What the client sent, if that is to be logged."""

    @property
    def request_id(self) -> str:
        """For messages."""
        return self.request.request_id

    def to_json(self) -> bytes:
        """The line, as `OutcomeRecord.to_json`."""
        route = self.route
        decision = NO_DECISION if route is None else route.decision
        values = values_of(self.request, decision, self.outcome, arrival_unix_s=self.arrival_unix_s)
        self._add_known(values)
        if route is not None:
            self._add_route(values, route)
        return encoded(values)

    def _add_known(self, values: dict[str, Any]) -> None:
        prepared, features = self.prepared, self.prepared.features
        values["request_features"] = features
        values["output_p50"] = prepared.output_p50
        values["output_p90"] = prepared.output_p90
        values["ttft_slo_s"] = float(features[_TTFT_SLO])
        values["tpot_slo_s"] = float(features[_TPOT_SLO])
        values["error"] = self.reason
        values["arm"] = "" if prepared.arm is None else prepared.arm.name
        values["affinity"] = self.affinity
        values["held_s"] = self.held_s
        values["asked_model"] = self.asked_model
        values["superseded"] = self.superseded
        if self.text is not None:
            values["prompt_text"] = self.text.decode("utf-8", "replace")

    def _add_route(self, values: dict[str, Any], route: Route) -> None:
        values["decided_at_s"] = route.dispatched_s
        values["queued_s"] = route.dispatched_s - self.prepared.request.arrival_s
        values["replica_ids"] = route.snapshot.replica_ids
        values["state"] = route.snapshot.state
        values["match_tokens"] = route.match_tokens
        values["mask"] = route.observation.mask
        values["replica_id"] = values["served_by"] = route.replica.id
        values.update(zip(LATENCY_OUTPUTS, route.predicted.tolist(), strict=True))
        values["estimated_ttft_s"] = route.raw_ttft_s
        values["estimated_tpot_s"] = route.raw_tpot_s
        values["bundle_version"] = route.bundle_version
