"""The tests import LightGBM themselves: let the package look for its OpenMP runtime first."""

import steersman.agents.fit  # noqa: F401
