"""Why this replica: see `explanation.py`."""

from steersman.agents.explain.candidate import Candidate
from steersman.agents.explain.explanation import Explanation, explain, explain_record

__all__ = ["Candidate", "Explanation", "explain", "explain_record"]
