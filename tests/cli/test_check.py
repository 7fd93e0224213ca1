"""`steersman check` as a user meets it: a line for each check, and an exit code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.serving.backends import backends, completion, whole
from tests.support.processes import free_port, run_cli

GOOD = whole(completion())


def configuration(directory: Path, *urls: str, more: str = "") -> str:
    path = directory / "router.yaml"
    listed = "".join(f"  - url: {url}\n" for url in urls)
    path.write_text(f"port: 0\npolicy: {{name: p2c}}\nbackends:\n{listed}{more}")
    return str(path)


async def test_the_exit_code_says_whether_it_would_serve(tmp_path: Path) -> None:
    async with backends(GOOD) as fleet:
        path = configuration(tmp_path, fleet[0].url)
        done = await asyncio.to_thread(run_cli, "check", path)
        assert (done.returncode, done.stderr) == (0, "")
        verdicts = [line.split()[0] for line in done.stdout.splitlines()]
        assert set(verdicts) == {"ok", "warn"}
        assert f"{fleet[0].url} serves m" in done.stdout
        assert (await asyncio.to_thread(run_cli, "check", path, "--strict")).returncode == 1


def test_a_backend_that_is_not_there_fails_it(tmp_path: Path) -> None:
    done = run_cli("check", configuration(tmp_path, f"http://127.0.0.1:{free_port()}"), "--json")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    failed = [each for each in json.loads(done.stdout)["checks"] if each["verdict"] == "fail"]
    assert any("Connection refused" in each["message"] for each in failed)


def test_a_file_that_is_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    done = run_cli("check", configuration(tmp_path, "http://a", more="scrap: {}\n"))
    assert done.returncode == 2
    assert "unknown key 'scrap'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
