"""The configuration: what is accepted, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from steersman.serving.config import RouterSettings
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings


def parse(**values: Any) -> RouterSettings:
    return parse_settings(
        {"backends": [{"url": "http://a:1"}]} | values, RouterSettings, source="f.yaml"
    )


def test_one_backend_is_enough() -> None:
    settings = parse()
    assert settings.backends[0].replica_id == "a:1"
    assert settings.policy.name == "learned"
    assert settings.guard.fallbacks == ("marginal-cost", "p2c")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:1/", "http://a:1"),
        ("http://a:1/v1", "http://a:1"),
        ("https://gw.example/llm/v1/", "https://gw.example/llm"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_base_urls_are_normalised(url: str, expected: str) -> None:
    assert parse(backends=[{"url": url, "id": "x"}]).backends[0].url == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"polcy": {}}, "unknown key 'polcy'; did you mean 'policy'?"),
        ({"scrape": {"intervall_s": 1}}, "did you mean 'interval_s'?"),
        ({"backends": []}, "backends"),
        ({"backends": [{"url": "a:1"}]}, "not an http(s) URL"),
        ({"backends": [{"url": "http://a:99999"}]}, "not a URL"),
        ({"backends": [{"url": "http://u:secret@a"}]}, "api_key_env"),
        ({"backends": [{"url": "http://a/?x=1"}]}, "query"),
        ({"backends": [{"url": "http://a/\r\nx: y"}]}, "blanks"),
        ({"backends": [{"url": "http://a", "id": "x\r\ny"}]}, "64 letters"),
        ({"backends": [{"url": "http://a:1"}, {"url": "http://a:1/"}]}, "two backends are called"),
        ({"backends": [{"url": "http://a", "id": "x"}, {"url": "http://a", "id": "y"}]}, "twice"),
        ({"backends": [{"url": "http://a", "metrics_path": "metrics"}]}, "begins with /"),
        ({"port": 70000}, "port"),
        ({"timeouts": {"connect_s": 0}}, "connect_s"),
    ],
)
def test_mistakes_are_told_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(**values)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("f.yaml: ")


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(backends=[{"url": "http://user:hunter2@a"}])
    assert "hunter2" not in str(raised.value)
