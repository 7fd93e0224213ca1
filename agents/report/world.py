"""The cluster that a replay was played in, and how true it is."""

from __future__ import annotations

from collections.abc import Sequence

from steersman.agents.offpolicy.world import World
from steersman.agents.report.page import Section, Table
from steersman.env.calibrate import ErrorLine


def world_section(world: World, fidelity: Sequence[ErrorLine]) -> Section:
    """The cluster behind the replay."""
    kinds = [
        [
            kind.profile.name,
            ", ".join(kind.replicas),
            "as configured" if kind.fit is None else f"fitted on {kind.fit.fitted_requests} requests",
        ]
        for kind in world.kinds
    ]
    kept = [f"{', '.join(kind.replicas)}: {kind.note}." for kind in world.kinds if kind.note]
    lines = [
        [line.figure.replace("_", " "), f"{line.measured_s:.4g}", f"{line.after:+.1%}"]
        for line in fidelity
    ]
    return Section(
        "The cluster behind the replay",
        paragraphs=[
            f"{len(world.trace)} requests that ended well on these replicas ({world.left_out} records "
            "are left out). Replicas of one profile whose speeds differ are kinds of their own. What "
            "was logged, played again with every request where it was served, says how true it is. "
            "Differences under 20 ms, of TPOT under 2 ms, count as none.",
            *kept,
        ],
        tables=[
            Table(("hardware profile", "replicas", "calibration"), kinds),
            Table(("quantile", "logged, s", "model"), lines, caption="Error of the model"),
        ],
    )
