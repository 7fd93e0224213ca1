from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.access.secrets import NO_KEY, PREFIX, hash_key, id_of, new_key, parse_hash


def test_a_new_key_is_found_by_its_id_and_matches_its_hash_alone() -> None:
    (key, key_id, hashed), (other, other_id, _) = new_key(), new_key()
    assert (id_of(key), id_of(other)) == (key_id, other_id)
    assert key_id != other_id
    assert hashed.matches(key)
    assert not hashed.matches(other)
    assert not NO_KEY.matches(key)


def test_what_is_kept_does_not_hold_the_secret() -> None:
    key, key_id, hashed = new_key()
    secret = key.removeprefix(f"{PREFIX}{key_id}-")  # which may have hyphens itself
    assert len(secret) == 43
    assert secret not in str(hashed)
    assert parse_hash(str(hashed)) == hashed
    assert hash_key(key) != hashed, "each hash has a salt of its own"


@given(st.text())
def test_any_text_is_a_key_without_id_or_no_hash(text: str) -> None:
    assert id_of(text) == ""
    assert not NO_KEY.matches(text.encode("utf-8", "replace").decode())
    with pytest.raises(ValueError, match="steersman keys new") as refused:
        parse_hash(text)
    assert len(text) < 12 or text not in str(refused.value)
