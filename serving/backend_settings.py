"""What is configured of a replica: how it is reached, and what it serves."""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from steersman.traces.settings import Settings

REPLICA_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,63}")
"""It goes into a response header, metric labels and logs, so it is kept this plain."""


class TlsSettings(Settings):
    """Of a replica at an https URL."""

    ca_file: str = Field(
        default="", description="PEM file of the authorities to trust; '' for the system's."
    )
    verify: bool = Field(
        default=True,
        description="false takes any certificate: only where the network itself is trusted.",
    )
    server_name: str = Field(
        default="", description="Name its certificate is for; '' for the URL's host."
    )
    cert_file: str = Field(
        default="", description="PEM file with the router's own certificate; '' for none."
    )
    key_file: str = Field(default="", description="PEM file with its key; '' if cert_file holds it too.")

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.key_file and not self.cert_file:
            raise ValueError("has a key_file without a cert_file; name the certificate too")
        if not self.verify and self.ca_file:
            raise ValueError("has a ca_file that verify: false would ignore; remove one of them")
        return self


class ReplicaSettings(Settings):
    """What replicas that are found have in common, and one that is listed has for itself."""

    models: tuple[str, ...] = Field(
        default=(), description="Models it serves; empty to ask the backend's /v1/models."
    )
    names: dict[str, str] = Field(
        default_factory=dict,
        description="Its own name for a model, where it has another: {llama: meta-llama/Llama-3.1-8B}.",
    )
    profile: str = Field(
        default="", description="Hardware profile: a bundled name or a YAML file; '' for the router's."
    )
    max_num_seqs: int | None = Field(
        default=None, ge=1, description="The engine's --max-num-seqs, if not the profile's."
    )
    max_batched_tokens: int | None = Field(
        default=None, ge=1, description="The engine's --max-num-batched-tokens, if not the profile's."
    )
    weight: float = Field(
        default=1.0, gt=0, le=100, description="Factor on its base weight in the weighted policies."
    )
    api_key_env: str = Field(
        default="",
        description="Environment variable with the backend's API key; '' passes the client's on.",
    )
    metrics_path: str = Field(
        default="/metrics",
        description="Page with the engine's metrics (/prometheus/metrics of trtllm-serve); '' if none.",
    )
    health_path: str = Field(default="/health", description="Answers 2xx while the replica is well.")
    connect_s: float | None = Field(
        default=None, gt=0, description="To connect to it, in seconds; timeouts.connect_s if not given."
    )
    first_byte_s: float | None = Field(
        default=None, gt=0, description="Until its first byte; timeouts.first_byte_s if not given."
    )
    engine_priority: Literal["none", "lower-first", "higher-first"] = Field(
        default="none",
        description="Pass the priority on in the body: lower-first to vLLM with --scheduling-policy "
        "priority, higher-first to SGLang with --enable-priority-scheduling.",
    )
    tls: TlsSettings = Field(default=TlsSettings(), description="Of an https URL.")

    @field_validator("metrics_path", "health_path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if path and not re.fullmatch(r"/[!-~]*", path):
            raise ValueError("write a path that begins with /")
        return path

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len(set(self.names.values())) < len(self.names):
            raise ValueError("'names' gives two models the same name; remove one")
        return self


class BackendSettings(ReplicaSettings):
    """One replica: a server that speaks the OpenAI API."""

    url: str = Field(
        description="Base URL, for example http://10.0.0.7:8000/prefix; a final /v1 is dropped."
    )
    id: str = Field(default="", description="Name in logs, metrics and headers; default host:port.")

    drain: bool = Field(
        default=False,
        description="It gets no new requests and finishes what it has; it stays, and is checked.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018 (reading it checks it)
        except ValueError as error:
            raise ValueError(f"not a URL ({error}); write it like http://host:8000") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not an http(s) URL; write it like http://host:8000")
        if parts.username or parts.password:
            raise ValueError("has credentials in it; name them with api_key_env instead")
        if parts.query or parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise ValueError("has a query, a fragment or blanks; write it like http://host:8000")
        return url.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("id")
    @classmethod
    def _check_id(cls, name: str) -> str:
        if name and not REPLICA_ID.fullmatch(name):
            raise ValueError("use up to 64 letters, digits and . _ : -")
        return name

    @property
    def replica_id(self) -> str:
        """`id`, or host:port of the URL."""
        return self.id or urlsplit(self.url).netloc
