"""Steersman: an adaptive scheduler for clusters of LLM inference servers.

The code lives in five layers, each importing only those to its right:
``serving → agents → env → predictors → traces``. See docs/architecture.md.
"""

__version__ = "0.1.0"
