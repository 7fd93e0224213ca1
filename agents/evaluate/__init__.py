"""How policies are judged: one protocol for every benchmark, report and promotion gate.

`docs/evaluation.md` describes it for users.
"""
