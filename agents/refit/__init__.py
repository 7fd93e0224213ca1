"""Refitting the predictors on what a router logged (SPEC A6); see `refit.py`."""
