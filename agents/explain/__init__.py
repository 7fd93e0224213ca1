"""Why this replica: see `explanation.py`."""

from steersman.agents.explain.candidate import TERMS, Candidate
from steersman.agents.explain.explanation import Explanation, explain, explain_record

__all__ = ["TERMS", "Candidate", "Explanation", "explain", "explain_record"]
