"""How the router is put together from its settings."""

from __future__ import annotations

from steersman.predictors import ledger as L
from steersman.serving.config import RouterSettings
from steersman.serving.parts import build_parts
from steersman.traces.settings import parse_settings


def test_a_backend_is_taken_with_the_limits_its_engine_was_started_with() -> None:
    backend = {"url": "http://127.0.0.1:1", "profile": "a100-llama-3.1-8b"}
    limited = backend | {"url": "http://127.0.0.1:2", "max_num_seqs": 24, "max_batched_tokens": 512}
    settings = parse_settings({"backends": [backend, limited]}, RouterSettings, source="test")
    state = build_parts(settings).fleet.state
    assert state[:, L.MAX_NUM_SEQS].tolist() == [256, 24]
    assert state[:, L.MAX_BATCHED_TOKENS].tolist() == [2048, 512]
