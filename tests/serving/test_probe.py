"""`serve --check` looks where the router would look."""

from __future__ import annotations

from pathlib import Path

from steersman.serving.probe import probe
from tests.serving.backends import backends, completion, whole
from tests.serving.discovery.test_files import found_in, write

GOOD = whole(completion())


async def test_replicas_that_discovery_finds_are_probed(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with backends(GOOD) as fleet:
        write(path, *fleet, names={"llama": "m"})
        (found,) = await probe(found_in(path))
        assert (found.id, found.models, found.engine, found.problems) == ("b0", ["llama"], "vllm", [])


async def test_a_source_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    (found,) = await probe(found_in(path))
    assert found.id == f"discovery from file {path}"
    assert "No such file" in found.problems[0]
