"""Does a replica still take as long as it did? (SPEC A6)

`drift.py` watches predictions, and so what the bias corrector and the models leave over: a replica that
suddenly takes twice as long is corrected within some tens of outcomes, before a pooled detector has made
up its mind. Here the analytic estimate without any correction is watched, replica by replica, with the
same cumulative sums on log(actual / estimate). What is usual there comes from few outcomes, and in
return only shifts count that are large (`SLACK`) and last; scatter is no matter, since it grows with
load.

Measured on the `demo` cluster in the cluster model, 24 000 outcomes each: no false alarm at 50, 70 and
85 % of saturation; at 95 %, where queues form that no estimate foresees, 8 about TTFT and none about
TPOT. Outcomes of the replica until an alarm, median of 9 courses at 56 %: 19 (TTFT) and 13 (TPOT) where
it takes 2.5 times as long, 22 and 15 at 1.6 times, 41 and 44 at 1.4 times; a change below 1.25 is none.
"""

from __future__ import annotations

import math

from steersman.predictors.drift import DriftDetector

REFERENCE_OUTCOMES = 60
THRESHOLD = 20.0
SLACK = 1.5
RAW = "raw_"
"""Before the name of a target: the estimate without correction."""
TARGETS = ("ttft", "tpot")


class Pace:
    """Of one replica."""

    def __init__(self) -> None:
        self._detectors = {target: _detector() for target in TARGETS}

    def observe(self, target: str, actual_s: float, estimated_s: float) -> bool:
        """An outcome; True if it raises the alarm.

        Args:
            target: `ttft` (from dispatch) or `tpot`.
            actual_s: nothing is learned unless it is positive and finite, as is its ratio to the next.
            estimated_s: the analytic estimate at the decision, without correction; as above.
        """
        if not (0.0 < actual_s < math.inf and 0.0 < estimated_s < math.inf):
            return False
        ratio = actual_s / estimated_s
        if not 0.0 < ratio < math.inf:  # too small, or too large, for a number
            return False
        return self._detectors[target].observe(math.log(ratio))

    @property
    def drifted(self) -> list[str]:
        """Targets that have changed since the last restart."""
        return [target for target, detector in self._detectors.items() if detector.drifted]

    def run(self, target: str) -> int:
        """Outcomes since the change, as far as can be told."""
        return self._detectors[target].run

    def statistic(self, target: str) -> float:
        """Above 1 it alarms."""
        return self._detectors[target].statistic

    def restart(self) -> None:
        """The world is accepted as it is. Whatever has not changed keeps its reference: no model is in
        these estimates."""
        for detector in self._detectors.values():
            if detector.drifted:
                detector.restart()


def _detector() -> DriftDetector:
    return DriftDetector(reference=REFERENCE_OUTCOMES, threshold=THRESHOLD, slack=SLACK, spread=False)
