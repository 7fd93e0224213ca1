from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steersman.env.emulator.fleet import write_profile
from steersman.env.profiles import load_profile, profile_names
from steersman.traces.schema import Batching


@pytest.mark.parametrize("name", profile_names())
def test_a_written_profile_reads_as_it_was(name: str, tmp_path: Path) -> None:
    profile = replace(load_profile(name), max_num_seqs=24, batching=Batching.STATIC)
    assert load_profile(str(write_profile(profile, tmp_path / "one"))) == profile
