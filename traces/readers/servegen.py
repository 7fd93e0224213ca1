"""ServeGen-style workloads: many clients, each with its own rhythm and lengths."""

from __future__ import annotations

from collections.abc import Iterator

from steersman.traces.readers.fields import Fields
from steersman.traces.readers.order import Placed
from steersman.traces.readers.source import Source
from steersman.traces.schema import Request

COLUMNS = ("client", "input_tokens", "output_tokens")
"""And `t_s` or `t`: seconds since midnight of the day. `reason_ratio` is known too late to use."""


def read_servegen(source: Source, model: str) -> Iterator[Placed]:
    """Clients become tenants `client-<number>`; the hour of day comes from the time."""
    fields = Fields(str(source.path))
    time_column = "t_s" if "t_s" in source.columns else "t"
    for place, row in source.rows():
        at = fields.at(place, row)
        time_s = at.seconds(time_column)
        yield (
            place,
            Request(
                request_id=f"r{place}",
                arrival_s=time_s,
                input_tokens=at.tokens("input_tokens"),
                output_tokens=at.tokens("output_tokens"),
                model=model,
                tenant=f"client-{at.text('client')}",
                hour_of_day=time_s / 3600.0 % 24.0,
            ),
        )
