from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from steersman.serving.access.caller import ANYBODY
from steersman.serving.access.gate import Gate
from steersman.serving.access.settings import KeyFile
from steersman.serving.errors import ApiError, Code
from steersman.serving.headers import Hints
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Priority
from steersman.traces.settings import parse_settings
from tests.serving.access.keys import make_key

NOW_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def gate(*entries: dict[str, Any], **more: Any) -> Gate:
    file = parse_settings({"keys": list(entries)} | more, KeyFile, source="keys")
    return Gate(file, wall_clock=lambda: NOW_S)


def refusal(door: Gate, *headers: tuple[bytes, bytes]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        door.caller(headers)
    return refused.value


def test_without_a_key_file_everybody_is_let_in() -> None:
    door = Gate()
    assert door.is_open
    assert door.caller([]) is ANYBODY
    headers = [(b"authorization", b"Bearer theirs")]
    assert door.passes_on(headers) == headers


@pytest.mark.parametrize(
    "header",
    [("authorization", "Bearer {}"), ("Authorization", "bearer  {} "), ("api-key", "{}")],
)
def test_a_key_is_taken_as_openai_s_and_azure_s_clients_send_it(header: tuple[str, str]) -> None:
    key, entry = make_key(tenant="search")
    sent = (header[0].lower().encode(), header[1].format(key).encode())
    door = gate(entry)
    assert door.caller([(b"authorization", b"Basic eDp5"), sent]).tenant == "search"
    assert door.passes_on([sent, (b"accept", b"*/*")]) == [(b"accept", b"*/*")]


def test_no_key_and_a_wrong_key_are_told_apart_but_an_unknown_id_is_not() -> None:
    key, entry = make_key()
    stranger, _ = make_key()
    door = gate(entry)
    assert refusal(door).code is Code.MISSING_API_KEY
    assert dict(refusal(door).headers)[b"www-authenticate"] == b"Bearer"
    altered = key[:-1] + ("A" if key[-1] != "A" else "B")
    wrong = [refusal(door, (b"api-key", k.encode())) for k in (altered, stranger, "sk-x", "ö" * 9)]
    assert {(e.status, e.code) for e in wrong} == {(401, Code.INVALID_API_KEY)}
    assert len({e.body for e in wrong}) == 1
    assert orjson.loads(wrong[0].body)["error"]["type"] == "invalid_request_error"


def test_disabled_and_expired_keys_are_refused() -> None:
    off, entry_off = make_key(disabled=True)
    late, entry_late = make_key(expires="2025-12-31T23:59:59Z")
    good, entry_good = make_key(expires="2026-01-01T00:00:01Z")
    door = gate(entry_off, entry_late, entry_good)
    assert refusal(door, (b"api-key", off.encode())).code is Code.INVALID_API_KEY
    assert refusal(door, (b"api-key", late.encode())).code is Code.EXPIRED_API_KEY
    assert door.caller([(b"api-key", good.encode())]).key_id == entry_good["id"]


def test_models_are_patterns() -> None:
    key, entry = make_key(models=["llama-*", "gpt-4o"])
    caller = gate(entry).caller([(b"api-key", key.encode())])
    assert caller.allows("llama-3")
    assert caller.allows("gpt-4o", "mistral"), "by one of its names"
    assert not caller.allows("mistral", "")
    with pytest.raises(ApiError, match="may not use") as refused:
        caller.check_model("mistral")
    assert (refused.value.status, refused.value.param) == (403, "model")


def test_tenant_and_priority_are_the_key_s() -> None:
    key, entry = make_key(tenant="search", top_priority=2)
    caller = gate(entry).caller([(b"api-key", key.encode())])
    taken = caller.take(Hints())
    assert (taken.tenant, taken.priority) == ("search", Priority.BATCH)
    less = Hints(priority=Priority.BACKGROUND, says_priority=True)
    assert caller.take(less).priority is Priority.BACKGROUND
    for hints, code in (
        (Hints(priority=Priority.INTERACTIVE, says_priority=True), Code.PRIORITY_NOT_ALLOWED),
        (Hints(tenant="other"), Code.TENANT_NOT_ALLOWED),
    ):
        with pytest.raises(ApiError) as refused:
            caller.take(hints)
        assert (refused.value.status, refused.value.code) == (403, code)


def test_limits_are_the_key_s_own_or_the_defaults() -> None:
    (one, own), (two, plain) = (
        make_key(limits={"concurrent": 3}),
        make_key(tenant="search"),
    )
    tenants = {"search": {"tokens_per_minute": 10.0}}
    door = gate(own, plain, tenants=tenants, defaults={"requests_per_minute": 6})
    assert door.caller([(b"api-key", one.encode())]).rates.concurrent == 3
    caller = door.caller([(b"api-key", two.encode())])
    assert caller.rates.requests_per_minute == 6
    assert caller.tenant_rates.tokens_per_minute == 10.0


def test_a_key_in_the_place_of_its_hash_is_refused_without_being_shown() -> None:
    key, entry = make_key()
    for wrong in (entry | {"hash": key}, entry | {"id": key}, entry | {"tenant": f"{key} {key}"}):
        with pytest.raises(ConfigError) as refused:
            parse_settings({"keys": [wrong]}, KeyFile, source="keys.yaml")
        assert key.rpartition("-")[2] not in str(refused.value)
        assert "keys.yaml: 'keys.0." in str(refused.value)


def test_an_id_is_there_once() -> None:
    _, entry = make_key()
    with pytest.raises(ConfigError, match="two keys have the id"):
        parse_settings({"keys": [entry, entry]}, KeyFile, source="keys")
