"""What the learned policy is meant to reach over the standard cells, beside what it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from steersman.agents.evaluate.comparisons import Row


class Verdict(StrEnum):
    """Whether an aim is reached."""

    REACHED = "reached"
    """The worse end of the interval is within the limit."""
    UNSURE = "not sure"
    """The value is, the worse end of its interval is not."""
    MISSED = "missed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Aim:
    """An upper limit of a figure."""

    figure: str
    """Name of the row."""
    limit: float
    words: str

    def judge(self, rows: Sequence[Row]) -> tuple[Verdict, Row | None]:
        """The verdict, and the row it rests on."""
        row = next((row for row in rows if row["name"] == self.figure), None)
        if row is None:
            return Verdict.NOT_RUN, None
        if row["value"] > self.limit:
            return Verdict.MISSED, row
        sure = row["hi"] is None or row["hi"] <= self.limit
        return (Verdict.REACHED if sure else Verdict.UNSURE), row


AIMS = (
    Aim("J_ratio.vs_llmd_published", 0.75, "J 25 % below llm-d's with published weights"),
    Aim("J_ratio.vs_llmd_tuned", 0.85, "J 15 % below llm-d's, tuned for each scenario"),
    Aim("J_ratio.vs_dynamo_published", 0.60, "J 40 % below Dynamo's with published constants"),
    Aim("J_ratio.vs_p2c_score", 0.40, "J 60 % below that of two random choices by score"),
    Aim("J1_ratio.vs_llmd_published", 1.0, "J1 no higher than llm-d's, published"),
    Aim("J1_ratio.vs_llmd_tuned", 1.0, "J1 no higher than llm-d's, tuned"),
    Aim("J1_ratio.vs_dynamo_published", 1.0, "J1 no higher than Dynamo's"),
    Aim("J1_ratio.vs_p2c_score", 1.0, "J1 no higher than that of two random choices"),
    Aim("J_ratio.vs_marginal_tuned", 0.97, "J 3 % below that of marginal cost, tuned for each scenario"),
    Aim("cells_worse.vs_marginal_tuned", 0.0, "in no cell worse than that"),
    Aim("J_ratio.vs_clairvoyant", 1.03, "within 3 % of the best of those who know the future"),
    Aim(
        "worst_cell.p99_ttft_vs_best_baseline",
        1.1,
        "p99 TTFT in every cell at most 1.1 times that of the baseline with the least J",
    ),
    Aim("overload.vs_best_baseline", 1.0, "at 105 and 120 % load J below that of every baseline"),
    Aim("replicas_ratio.homogeneous", 0.85, "15 % fewer replicas than round robin, homogeneous pool"),
    Aim("replicas_ratio.mixed", 0.70, "30 % fewer replicas than round robin, mixed pool"),
)
