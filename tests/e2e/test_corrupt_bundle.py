"""A broken model never stops traffic (SPEC D6)."""

from __future__ import annotations

from pathlib import Path

import openai

from tests.e2e.conftest import MODEL, Backends, router_config, serve_router

NO_OTHER = {"name": "learned", "options": {"shipped": False}}


def test_a_corrupt_bundle_is_reported_and_the_router_serves(backends: Backends, tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    bundle.mkdir()
    (bundle / "bundle.json").write_text('{"format": 1, "version": "7", "files": {"policy.onnx": "0"}}')
    (bundle / "policy.onnx").write_bytes(b"not a model")
    config = router_config(backends, bundle={"directory": str(bundle)}, policy=NO_OTHER)
    with serve_router(tmp_path / "router.yaml", config) as router:
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
            raw = client.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=3
            )
        assert raw.parse().choices[0].message.content
        assert raw.headers["x-steersman-replica"] in backends.ids
        assert raw.headers["x-steersman-fallback"]
        complaints = [line for line in router.process.log.splitlines() if str(bundle) in line]
        assert complaints, router.process.log
