"""Differential evolution, as a dialogue: what it asks can be answered together with other searches.

Storn and Price, "Differential evolution – a simple and efficient heuristic for global optimization over
continuous spaces" (1997): `best/1/bin`, with the usual constants and a mutation factor drawn anew for
each generation.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

CROSSOVER = 0.7
"""Chance that a coordinate of a trial is the mutant's."""
MUTATION = (0.5, 1.0)
"""Between which the mutation factor is drawn."""

Points = NDArray[np.float64]
Evolution = Generator[Points, NDArray[np.float64], tuple[Points, float]]
"""Yields points, (population, dimensions); is sent their values, (population,); returns the best point
and its value."""


def evolve(first: Points, generations: int, rng: np.random.Generator) -> Evolution:
    """Search the unit cube for the least value.

    Args:
        first: (population, dimensions), the first generation, of at least four.
        generations: with the first one.
    """
    points = first.copy()
    values = yield points.copy()
    for _ in range(generations - 1):
        trials = _trials(points, points[values.argmin()], rng)
        found = yield trials
        better = found <= values
        points = np.where(better[:, None], trials, points)
        values = np.where(better, found, values)
    best = int(values.argmin())
    return points[best], float(values[best])


def _trials(points: Points, best: Points, rng: np.random.Generator) -> Points:
    """One for each point: itself, crossed with the best one moved by the difference of two others."""
    population, dimensions = points.shape
    factor = rng.uniform(*MUTATION)
    trials = points.copy()
    for i in range(population):
        others = np.delete(np.arange(population), i)
        one, other = rng.choice(others, 2, replace=False)
        mutant = best + factor * (points[one] - points[other])
        outside = (mutant < 0.0) | (mutant > 1.0)
        mutant = np.where(outside, rng.random(dimensions), mutant)
        crossed = rng.random(dimensions) < CROSSOVER
        crossed |= np.arange(dimensions) == rng.integers(dimensions)  # never a copy
        trials[i] = np.where(crossed, mutant, points[i])
    return trials
