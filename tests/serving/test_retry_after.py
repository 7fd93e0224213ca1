"""`Retry-After` in both forms, and in none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.retry_after import retry_after_s

NOON_UNIX_S = 1_700_000_000.0 - 1_700_000_000.0 % 86_400 + 43_200
NOON = "Tue, 14 Nov 2023 12:00:00 GMT"


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        ("0", 0.0),
        ("30", 30.0),
        (" 7 ", 7.0),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("99999999999", None),
        ("soon", None),
        ("٣", None),
        (NOON, 60.0),
        ("Tue, 14 Nov 2023 11:00:00 GMT", 0.0),
        ("Tue, 14 Nov 99999 11:00:00 GMT", None),
    ],
)
def test_both_forms(value: str, expected_s: float | None) -> None:
    assert retry_after_s(value, NOON_UNIX_S - 60.0) == expected_s


@given(st.text(max_size=80))
def test_anything_else_is_none_or_a_time(value: str) -> None:
    wait_s = retry_after_s(value)
    assert wait_s is None or wait_s >= 0.0
