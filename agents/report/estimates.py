"""Off-policy estimates beside the replay that they may veto."""

from __future__ import annotations

import numpy as np

from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.offpolicy.ope import OffPolicy
from steersman.agents.report.figures import ends, intervals
from steersman.agents.report.page import Figure, Section, Table


def estimates_section(ope: OffPolicy, replayed: Ratio | None) -> Section:
    """Off-policy estimates.

    Args:
        replayed: J of challenger over champion in the replay, if there was one.
    """
    if not ope.estimates:
        return Section("Off-policy estimates", paragraphs=[f"None: {ope.note}."])
    words = {"ips": "IPS", "snips": "SNIPS", "dr": "doubly robust"}
    rows = []
    for name, one in ope.estimates.items():
        rows.append(
            [
                words[name],
                str(one.ratio),
                f"{one.effective:.0f} of {ope.decisions}",
                f"{one.clipped:.1%}",
                f"{one.mean_weight:.2f}",
            ]
        )
    drawn = [(words[name], *ends(one.ratio)) for name, one in ope.estimates.items()]
    if replayed is not None:
        drawn.append(("replay", *ends(replayed)))
    shown = [row for row in drawn if np.isfinite(row[1:]).all()]
    return Section(
        "Off-policy estimates",
        paragraphs=[
            f"Cost of a decision over the champion's, from {ope.decisions} decisions whose cost and "
            f"propensity are known; {ope.explored:.1%} of them were improbable. They are biased here, "
            "since a choice changes what later requests meet, and rest on the effective decisions only. "
            "A mean weight far from 1 says that the log hardly covers what the challenger does."
        ],
        tables=[Table(("estimate", "ratio", "effective decisions", "weights cut", "mean weight"), rows)],
        figures=[
            Figure(
                intervals(shown, label="challenger over champion", reference=1.0),
                "The estimates beside the replay.",
            )
        ]
        if shown
        else [],
    )
