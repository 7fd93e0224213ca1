"""Hypothesis strategies shared by the trace tests."""

from __future__ import annotations

from hypothesis import strategies as st

from steersman.traces.schema import Priority, QuestionType, Request, ToolChoice

times = st.floats(0, 1e6, allow_nan=False).map(lambda t: round(t, 6))
names = st.text('ab é☃/,"', max_size=8)


@st.composite
def requests(draw: st.DrawFn, max_size: int = 12) -> list[Request]:
    """A valid list of requests, sorted by arrival, some in sessions with parents."""
    arrivals = sorted(draw(st.lists(times, max_size=max_size)))
    last_of: dict[str, str] = {}
    made = []
    for i, arrival in enumerate(arrivals):
        session = draw(st.none() | st.sampled_from(["s1", "s2", "é"]))
        parent = last_of.get(session) if session is not None and draw(st.booleans()) else None
        hashes = draw(st.lists(st.integers(0, 2**63 - 1), max_size=4))
        made.append(
            Request(
                request_id=f"r{i}",
                arrival_s=arrival,
                input_tokens=draw(st.integers(1, 10**6)),
                output_tokens=draw(st.none() | st.integers(0, 10**6)),
                max_tokens=draw(st.none() | st.integers(1, 10**6)),
                model=draw(names),
                tenant=draw(names),
                priority=draw(st.sampled_from(Priority)),
                stream=draw(st.booleans()),
                tools=draw(st.integers(0, 100)),
                tool_choice=draw(st.sampled_from(ToolChoice)),
                has_code=draw(st.booleans()),
                question_type=draw(st.sampled_from(QuestionType)),
                question_bytes=draw(st.integers(0, 10**6)),
                asked_tokens=draw(st.integers(0, 10**4)),
                wording=draw(st.floats(-3, 3)),
                turns=draw(st.integers(1, 100)),
                lora_adapter=draw(st.none() | names.filter(bool)),
                session_id=session,
                parent_id=parent,
                think_time_s=draw(st.floats(0, 1e4)) if parent else 0.0,
                block_hashes=tuple(hashes),
                block_tokens=16 if hashes else 0,
                hour_of_day=draw(st.none() | st.floats(0, 23.999)),
                called_tool=draw(st.none() | st.booleans()),
            )
        )
        if session is not None:
            last_of[session] = f"r{i}"
    return made
