"""Hypothesis for this folder: machines under load are slow, which is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("traces", deadline=None, max_examples=40)
settings.load_profile("traces")
