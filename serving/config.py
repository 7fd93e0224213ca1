"""The router's configuration: one YAML file, one model per section.

Every key has a default; there must be `backends`, or a `discovery` that finds them. Unknown keys are
refused. Relative paths are relative to the working directory. Secrets are never in the file: a backend's
API key is named by the environment variable that holds it.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from steersman.agents.affinity import AffinitySettings
from steersman.agents.guard import GuardSettings
from steersman.agents.queueing.settings import QueueSettings
from steersman.serving.access.settings import AccessSettings
from steersman.serving.admin.settings import AdminSettings
from steersman.serving.backend_settings import REPLICA_ID, BackendSettings
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.discovery.settings import DiscoverySettings
from steersman.serving.policy_settings import PolicySettings
from steersman.serving.shadow.settings import ShadowSettings
from steersman.serving.shared.settings import SharedSettings
from steersman.serving.tls import ListenerTlsSettings
from steersman.serving.trust_settings import BreakerSettings, OutlierSettings, SlowStartSettings
from steersman.traces.schema import Priority
from steersman.traces.settings import Settings


class ScrapeSettings(Settings):
    """How the engines' metrics are read."""

    interval_s: float = Field(
        default=0.2, ge=0.05, le=60, description="Time between two scrapes of a replica, in seconds."
    )
    jitter: float = Field(
        default=0.1, ge=0, lt=1, description="Each interval is drawn from interval_s * (1 ± jitter)."
    )
    timeout_s: float = Field(default=1.0, gt=0, le=60, description="For one scrape, in seconds.")
    max_backoff_s: float = Field(
        default=5.0, gt=0, le=300, description="Longest pause after repeated failures, in seconds."
    )


class HealthSettings(Settings):
    """When a replica is taken out and brought back (SPEC D1)."""

    interval_s: float = Field(
        default=5.0, gt=0, le=300, description="Time between two checks, in seconds."
    )
    timeout_s: float = Field(default=2.0, gt=0, le=60, description="For one check, in seconds.")
    failures: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Failures in a row, of checks or requests, that take it out.",
    )
    successes: int = Field(default=2, ge=1, le=100, description="Checks in a row that bring it back.")
    silence_s: float = Field(
        default=1.5,
        ge=0,
        le=60,
        description="A replica that owes an answer to a scrape or a check, and has sent nothing at all "
        "for this long while most others have, gets no new requests and is checked at once; 0: never.",
    )
    models_interval_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time between two looks at the models (and adapters) it lists, in seconds.",
    )


class TimeoutSettings(Settings):
    """Patience with clients and replicas, in seconds."""

    connect_s: float = Field(default=2.0, gt=0, description="To connect to a replica.")
    first_byte_s: float = Field(
        default=600.0, gt=0, description="Until a replica's first byte; without streaming, the answer."
    )
    idle_s: float = Field(default=120.0, gt=0, description="Between two pieces of a streamed answer.")
    body_s: float = Field(default=60.0, gt=0, description="For a client to send its whole request.")
    headers_s: float = Field(
        default=30.0, gt=0, le=3600, description="For a client to send the head of a request."
    )
    keep_alive_s: float = Field(
        default=75.0,
        gt=0,
        le=3600,
        description="Idle connections of clients are closed after it; longer than the load balancer's.",
    )
    lame_duck_s: float = Field(
        default=0.0,
        ge=0,
        le=600,
        description="After SIGTERM, still taking requests while `/ready` and `/health` say no more.",
    )
    drain_s: float = Field(
        default=30.0, ge=0, description="For requests in flight to end after that; then they are cut."
    )


class RetrySettings(Settings):
    """Retries: only before the first byte has gone to the client, on another replica (SPEC D3)."""

    attempts: int = Field(default=3, ge=0, le=10, description="Further attempts for one request.")
    budget_ratio: float = Field(
        default=0.2, ge=0, le=1, description="Retries each new request adds to the budget."
    )
    budget_burst: int = Field(
        default=500, ge=0, description="Retries the budget can hold; it starts full."
    )
    statuses: tuple[int, ...] = Field(
        default=(429, 500, 502, 503, 504), description="Answers of a replica that are tried elsewhere."
    )
    max_retry_after_s: float = Field(
        default=60.0, ge=0, description="Longest Retry-After for which a replica is left in peace."
    )
    most_broken: int = Field(
        default=3,
        ge=0,
        le=100,
        description="Replicas whose connection may break on one body, one after the other, before it is "
        "refused; one less than there are, if that is fewer, but at least 2; 0: no limit.",
    )
    broken_rest_s: float = Field(
        default=60.0, ge=0, le=3600, description="For how long it is refused then, in seconds."
    )


class HedgingSettings(Settings):
    """A second attempt beside one that is late, on another replica (SPEC B9)."""

    enabled: bool = Field(
        default=False,
        description="Whether a stream without a first byte by the predicted p99 of its TTFT is sent to "
        "another replica as well; the first to answer serves it, and the other is cancelled.",
    )
    budget_ratio: float = Field(
        default=0.02, ge=0, le=1, description="Second attempts each new request adds to the budget."
    )
    budget_burst: int = Field(
        default=10, ge=0, description="Second attempts the budget can hold; it starts full."
    )
    least_wait_s: float = Field(
        default=0.1, ge=0, le=600, description="No second attempt is made before, in seconds."
    )


class LimitSettings(Settings):
    """Bounds on what a client or a replica may send."""

    body_bytes: int = Field(default=32 * 2**20, ge=1024, description="Largest request body.")
    header_bytes: int = Field(
        default=32 * 2**10, ge=1024, description="Largest sum of the names and values of headers."
    )
    hold_bytes: int = Field(
        default=2**20,
        ge=0,
        description="Of an answer that does not stream, held back so that a break can still be retried.",
    )
    connections: int = Field(
        default=8192, ge=0, description="Connections of clients at once; 0 for no limit."
    )
    connections_per_replica: int = Field(
        default=0, ge=0, description="Connections to one replica at once; 0 for no limit."
    )


class BundleSettings(Settings):
    """The trained models."""

    directory: str = Field(
        default="", description="Directory of the bundle; '' for none: what ships with Steersman."
    )
    watch_interval_s: float = Field(
        default=2.0, ge=0, description="Time between two looks for a new bundle, in seconds; 0: never."
    )
    latency_budget_ms: float = Field(
        default=5.0,
        ge=0,
        description="A bundle whose policy takes longer for a decision among 16 replicas is refused; "
        "0: none is.",
    )
    keep_directory: str = Field(
        default="",
        description="Where a copy of the last bundle that served is kept, for a start at which "
        "'directory' has none that is sound; '': nowhere.",
    )


class OutcomeLogSettings(Settings):
    """The log of what was decided and what came of it; without prompt text unless that is asked for."""

    directory: str = Field(default="", description="Where it is written; '' for no log.")
    segment_bytes: int = Field(
        default=64 * 2**20, ge=2**16, description="Size at which a file is closed."
    )
    total_bytes: int = Field(
        default=2**30,
        ge=2**17,
        description="Size of all files, compacted or not; the oldest are deleted above it.",
    )
    flush_interval_s: float = Field(
        default=0.5, gt=0, le=60, description="Longest time a record waits in memory, in seconds."
    )
    overflow_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        description="Size of the records that wait in memory, of all workers, while the disk refuses "
        "them; what comes beyond is dropped and counted.",
    )
    segment_s: float = Field(
        default=3600.0, gt=0, description="Age at which a file is closed, in seconds."
    )
    compact: bool = Field(
        default=True,
        description="Whether closed files are compacted to Parquet, by a process of low priority.",
    )
    prompt_text: bool = Field(
        default=False, description="Whether what clients send is logged too, in a column of its own."
    )
    prompt_text_bytes: int = Field(
        default=32 * 2**10, ge=1, le=2**24, description="Of which so much is kept, per request."
    )


class RefitSettings(Settings):
    """Refitting the predictors on the outcome log, in a worker process (needs `steersman[train]`)."""

    enabled: bool = Field(
        default=False, description="Whether to refit when predictions drift; needs a log and a bundle."
    )
    min_outcomes: int = Field(
        default=1000, ge=200, description="Outcomes to wait for after drift was seen."
    )
    min_interval_s: float = Field(
        default=300.0, ge=0, description="Least time between two refits, in seconds."
    )
    interval_s: float = Field(
        default=0.0, ge=0, description="Also refit so often without drift, in seconds; 0: never."
    )
    window_outcomes: int = Field(
        default=20_000, ge=500, le=1_000_000, description="Most outcomes to learn from."
    )
    timeout_s: float = Field(
        default=900.0, gt=0, description="A worker that takes longer is killed, in seconds."
    )
    memory_gib: float = Field(
        default=4.0, ge=0, description="Most memory of the worker, in GiB; 0: no limit."
    )
    nice: int = Field(default=10, ge=0, le=19, description="Niceness of the worker.")


class RouterSettings(Settings):
    """The whole file."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 for any free one.")
    workers: int = Field(
        default=1, ge=1, le=256, description="Processes that serve; about one for each core to use."
    )
    tls: ListenerTlsSettings = Field(default=ListenerTlsSettings(), description="Towards clients.")
    admin: AdminSettings = Field(default=AdminSettings(), description="For operators.")
    backends: tuple[BackendSettings, ...] = Field(
        default=(), description="The replicas. Those that serve the same model form its pool."
    )
    discovery: DiscoverySettings = Field(
        default=DiscoverySettings(), description="Where more of them are found, while the router runs."
    )
    aliases: dict[str, str] = Field(
        default_factory=dict,
        description="Further names of models: what a client may ask for, and the model that serves it.",
    )
    fallback_models: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Models that answer in place of a model while none of its replicas can, in this "
        "order; the answer's x-steersman-degraded says so.",
    )
    access: AccessSettings = Field(default=AccessSettings(), description="Who is let in.")
    affinity: AffinitySettings = Field(
        default=AffinitySettings(), description="Keeping groups of requests together."
    )
    shared: SharedSettings = Field(default=SharedSettings(), description="What routers know together.")
    profile: str = Field(
        default="a100-llama-3.1-8b", description="Hardware profile of backends that name none."
    )
    policy: PolicySettings = Field(default=PolicySettings(), description="Who decides.")
    guard: GuardSettings = Field(
        default=GuardSettings(), description="When the learned policy is overruled, and by whom."
    )
    tokenizer: str = Field(
        default="", description="A tokenizer.json to count prompt tokens with; '' to estimate them."
    )
    bundle: BundleSettings = Field(default=BundleSettings(), description="The trained models.")
    canary: CanarySettings = Field(
        default=CanarySettings(), description="Trying a challenger on a share of the traffic."
    )
    scrape: ScrapeSettings = Field(default=ScrapeSettings(), description="Reading engines' metrics.")
    health: HealthSettings = Field(default=HealthSettings(), description="Taking replicas out and back.")
    breaker: BreakerSettings = Field(
        default=BreakerSettings(), description="Leaving out replicas that fail too often."
    )
    outliers: OutlierSettings = Field(
        default=OutlierSettings(), description="Leaving out replicas that answer much too late."
    )
    slow_start: SlowStartSettings = Field(
        default=SlowStartSettings(), description="Replicas that are new, or back."
    )
    timeouts: TimeoutSettings = Field(default=TimeoutSettings(), description="Patience, in seconds.")
    queue: QueueSettings = Field(
        default=QueueSettings(), description="Holding requests back while all replicas are full."
    )
    retries: RetrySettings = Field(default=RetrySettings(), description="Trying elsewhere.")
    hedging: HedgingSettings = Field(default=HedgingSettings(), description="Trying elsewhere as well.")
    limits: LimitSettings = Field(default=LimitSettings(), description="Bounds on sizes.")
    objectives: dict[str, int] = Field(
        default_factory=dict,
        description="Priority, 0 to 3, of each name in x-llm-d-inference-objective; {}: not looked at.",
    )
    outcome_log: OutcomeLogSettings = Field(
        default=OutcomeLogSettings(), description="The log of decisions and outcomes."
    )
    shadow: ShadowSettings = Field(
        default=ShadowSettings(), description="Challengers that score live traffic without serving it."
    )

    refit: RefitSettings = Field(
        default=RefitSettings(), description="Refitting the predictors while they serve."
    )

    @field_validator("fallback_models")
    @classmethod
    def _check_fallbacks(cls, fallbacks: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for model, others in fallbacks.items():
            if len({model, *others}) <= len(others):
                raise ValueError(f"'{model}' is to be replaced by itself, or twice by one; name others")
        return fallbacks

    @field_validator("objectives")
    @classmethod
    def _check_objectives(cls, objectives: dict[str, int]) -> dict[str, int]:
        for name, priority in objectives.items():
            if priority not in tuple(Priority):
                raise ValueError(f"'{name}' has priority {priority}; use 0 (interactive) to 3")
        return objectives

    @model_validator(mode="after")
    def _check_refit(self) -> Self:
        if self.refit.enabled:
            needed = {
                "bundle.directory": bool(self.bundle.directory),
                "bundle.watch_interval_s": self.bundle.watch_interval_s > 0,
                "outcome_log.directory": bool(self.outcome_log.directory),
                "workers: 1 (or 'steersman train refit' beside it)": self.workers == 1,
            }
            missing = [key for key, given in needed.items() if not given]
            if missing:
                raise ValueError(f"refit.enabled needs {' and '.join(missing)}; set it too")
        return self

    @model_validator(mode="after")
    def _check_canary(self) -> Self:
        if self.canary.enabled and not (self.canary.state_file or self.shared.url):
            raise ValueError(
                "canary.enabled needs canary.state_file, or shared.url where there are several routers; "
                "set one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_shadow(self) -> Self:
        if self.shadow.enabled and not self.outcome_log.directory:
            raise ValueError("shadow.enabled needs outcome_log.directory; set it too")
        return self

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        if not self.backends and not self.discovery.sources:
            raise ValueError("no 'backends' and no 'discovery'; name a replica, or where to find them")
        seen: dict[str, str] = {}
        for backend in self.backends:
            name = backend.replica_id
            if not REPLICA_ID.fullmatch(name):
                raise ValueError(f"backend {backend.url} needs an 'id'; add one")
            if name in seen:
                raise ValueError(f"two backends are called '{name}'; give each its own 'id'")
            if backend.url in seen.values():
                raise ValueError(f"{backend.url} is listed twice; raise its 'weight' instead")
            seen[name] = backend.url
        return self
