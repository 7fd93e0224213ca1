"""Rehearsing without GPUs: emulated backends, the router and a replayed trace, compared and reported."""
