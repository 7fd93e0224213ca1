"""Reading `Retry-After` (RFC 9110, 10.2.3): seconds, or a date."""

from __future__ import annotations

import time
from email.utils import mktime_tz, parsedate_tz


def retry_after_s(value: str, now_unix_s: float | None = None) -> float | None:
    """How long to wait, in seconds, never negative; None where the value is neither form.

    Args:
        value: of the header; may be empty.
        now_unix_s: for tests; the wall clock's.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 10 else None
    date = parsedate_tz(value) if value and len(value) < 64 else None
    if date is None:
        return None
    try:
        until_unix_s = mktime_tz(date)
    except (OverflowError, ValueError):
        return None
    return max(until_unix_s - (time.time() if now_unix_s is None else now_unix_s), 0.0)
