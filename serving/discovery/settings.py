"""Where replicas are looked for."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from steersman.serving.backend_settings import ReplicaSettings
from steersman.traces.settings import Settings

_PATH = re.compile(r"(/[!-~]+)?")


class FileSource(Settings):
    """A YAML file with a list of backends, read again whenever it changes."""

    path: str = Field(min_length=1, description="The file: a list of entries as under `backends`.")
    interval_s: float = Field(
        default=1.0, ge=0.05, le=3600, description="Time between two looks at it, in seconds."
    )


class DnsSource(Settings):
    """A host name with several addresses, or a service record."""

    name: str = Field(min_length=1, description="For example vllm.prod.svc.cluster.local.")
    record: Literal["address", "srv"] = Field(
        default="address", description="address: A and AAAA; srv: hosts and ports (needs dnspython)."
    )
    port: int = Field(default=8000, ge=1, le=65535, description="Port of an address.")
    scheme: Literal["http", "https"] = Field(default="http", description="Of the replicas' URLs.")
    path: str = Field(default="", description="Prefix of their paths, for example /llama.")
    servers: tuple[str, ...] = Field(
        default=(), description="Name servers (address or address:port); empty for the system's."
    )
    interval_s: float = Field(
        default=10.0, ge=0.05, le=3600, description="Time between two look-ups, in seconds."
    )
    timeout_s: float = Field(default=5.0, gt=0, le=60, description="For one look-up, in seconds.")
    replica: ReplicaSettings = Field(
        default=ReplicaSettings(), description="What all replicas found have in common."
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not _PATH.fullmatch(path):
            raise ValueError("write a path that begins with /")
        return path


class KubernetesSource(Settings):
    """The EndpointSlices of a Service, watched."""

    namespace: str = Field(
        default="", description="Of the Service; '' for the namespace the router runs in."
    )
    service: str = Field(min_length=1, description="Name of the Service.")
    port: str = Field(
        default="", description="Name or number of the port; '' where the Service has only one."
    )
    scheme: Literal["http", "https"] = Field(default="http", description="Of the replicas' URLs.")
    path: str = Field(default="", description="Prefix of their paths, for example /llama.")
    api_url: str = Field(
        default="", description="Of the API server; '' for the cluster the router runs in."
    )
    token_file: str = Field(
        default="/var/run/secrets/kubernetes.io/serviceaccount/token",
        description="Bearer token, read again for every request, since it rotates; '' for none.",
    )
    ca_file: str = Field(
        default="/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        description="Authority of the API server; not used with a http URL.",
    )
    retry_s: float = Field(
        default=2.0, ge=0.05, le=300, description="Pause after a failure, in seconds."
    )
    watch_s: float = Field(
        default=300.0, ge=1, le=3600, description="Longest life of one watch, in seconds."
    )
    replica: ReplicaSettings = Field(
        default=ReplicaSettings(), description="What all replicas found have in common."
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not _PATH.fullmatch(path):
            raise ValueError("write a path that begins with /")
        return path

    @field_validator("api_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[!-~]+", url):
            raise ValueError("not an http(s) URL; write it like https://10.0.0.1:6443")
        return url.rstrip("/")


class DiscoverySettings(Settings):
    """All of them; what they find is taken together."""

    files: tuple[FileSource, ...] = Field(default=(), description="Files.")
    dns: tuple[DnsSource, ...] = Field(default=(), description="Names.")
    kubernetes: tuple[KubernetesSource, ...] = Field(default=(), description="Services.")

    @property
    def sources(self) -> int:
        """How many there are."""
        return len(self.files) + len(self.dns) + len(self.kubernetes)

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        for sources in (self.files, self.dns, self.kubernetes):
            if len(set(map(repr, sources))) < len(sources):
                raise ValueError("lists the same source twice; remove one")
        return self
