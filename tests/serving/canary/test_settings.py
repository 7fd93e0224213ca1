from __future__ import annotations

from typing import Any

import pytest

from steersman.serving.config import RouterSettings
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings

GOOD: dict[str, Any] = {
    "enabled": True,
    "challenger": {"bundle": "mlruns/served/challenger"},
    "state_file": "canary.json",
}


def parse(**more: Any) -> RouterSettings:
    values = {"backends": [{"url": "http://a"}], "canary": GOOD | more}
    return parse_settings(values, RouterSettings, source="test")


def test_the_usual_stages() -> None:
    canary = parse().canary
    assert canary.shares == (0.05, 0.2, 0.5, 1.0)
    assert (canary.hold_s, canary.p99_rise, canary.error_rise) == (1800.0, 0.3, 0.005)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"challenger": {}}, "name its bundle, policy or guard"),
        ({"state_file": ""}, "needs canary.state_file, or shared.url"),
        ({"shares": [0.5, 0.2]}, "have to rise"),
        ({"shares": []}, "have to rise"),
        ({"shares": [0.0, 1.0]}, "have to rise"),
        ({"shares": [0.5, 2.0]}, "have to rise"),
        ({"washout_s": 60}, "leaves nothing of block_s"),
        ({"split": "coin"}, "canary.split"),
        ({"challenger": {"policy": {"nme": "p2c"}}}, "did you mean 'name'"),
    ],
)
def test_what_makes_no_sense_is_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**more)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
