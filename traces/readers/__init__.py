"""Readers of public trace formats and of our own: one module each, found by content.

`open_trace` streams, `load_trace` collects.
"""

from steersman.traces.readers.detect import BUNDLED, find_trace, load_trace, open_trace

__all__ = ["BUNDLED", "find_trace", "load_trace", "open_trace"]
