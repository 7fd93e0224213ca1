"""The emulated backend's process: how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

STARTS_FOR_EVER = """
import asyncio, uvicorn
from steersman.env.emulator.server import _Server

async def app(scope, receive, send):
    await receive()
    print("starting", flush=True)
    await asyncio.Event().wait()

_Server(uvicorn.Config(app, loop="uvloop", lifespan="on", port=0), print, exit_with_stdin=False).run()
"""


def test_ctrl_c_during_the_start_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_FOR_EVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert "Traceback" not in process.stderr.read()
