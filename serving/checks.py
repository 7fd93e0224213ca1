"""`steersman check`: would a router with this configuration serve, and what would surprise its owner?

Everything is looked at as the router would look at it, from the same code; nothing is changed, and no
request is sent to a model.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from steersman.predictors import code_cache
from steersman.serving.config import RouterSettings
from steersman.serving.models import LEARNED, load_models
from steersman.serving.policy_settings import Compiled
from steersman.serving.probe import ProbeResult, probe
from steersman.serving.reload import rehearse
from steersman.serving.server import open_socket
from steersman.traces.errors import ArtifactError, ConfigError

FEW_FILES = 4096
"""Fewer open files than this are soon used up: a streamed answer takes two."""


class Verdict(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARN = "warn"
    """It would serve, though perhaps not as meant."""
    FAIL = "fail"
    """It would not serve, or not all of what the configuration names."""


@dataclass(frozen=True)
class Check:
    """One line."""

    verdict: Verdict
    subject: str
    message: str


async def check_router(settings: RouterSettings) -> list[Check]:
    """All checks, in the order in which a router would meet what they are about.

    Raises:
        ConfigError: as `create_app`.
    """
    rehearse(settings)
    probed = await probe(settings)
    return [
        _address(settings),
        _open_files(),
        *(check for result in probed for check in _backend(result)),
        *_models(settings, probed),
        *_policy(settings),
        _features(settings),
        *_outcome_log(settings),
    ]


def _address(settings: RouterSettings) -> Check:
    where = f"{settings.host}:{settings.port}"
    try:
        open_socket(settings).close()
    except ConfigError as error:
        # On a machine where the router already runs, that is as it should be.
        return Check(Verdict.WARN, "listen", f"{error}, unless this router runs there now")
    return Check(Verdict.OK, "listen", f"{where} is free")


def _open_files() -> Check:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < FEW_FILES:
        message = f"{most} at once are few, at two for a streamed answer; raise 'ulimit -n'"
        return Check(Verdict.WARN, "open files", message)
    return Check(Verdict.OK, "open files", f"{most} at once")


def _backend(result: ProbeResult) -> Iterator[Check]:
    subject = f"backend {result.id}"
    for problem in result.problems:
        yield Check(Verdict.FAIL, subject, problem)
    if not result.problems:
        engine = f"{result.engine} metrics" if result.engine else "no metrics page configured"
        yield Check(Verdict.OK, subject, f"{result.url} serves {', '.join(result.models)}; {engine}")


def _models(settings: RouterSettings, probed: list[ProbeResult]) -> Iterator[Check]:
    counts = Counter(model for result in probed for model in dict.fromkeys(result.models))
    for model, count in sorted(counts.items()):
        yield Check(Verdict.OK, f"model {model}", f"{count} replica{'s' if count > 1 else ''}")
    for alias, model in sorted(settings.aliases.items()):
        if model not in counts:
            message = f"leads to '{model}', which nobody serves; correct 'aliases'"
            yield Check(Verdict.FAIL, f"alias {alias}", message)


def _policy(settings: RouterSettings) -> Iterator[Check]:
    directory = settings.bundle.directory
    if not directory:
        if settings.policy.name == LEARNED:
            fallback = "without a bundle the guard's fallback decides; name one in bundle.directory"
            yield Check(Verdict.WARN, "policy learned", fallback)
        else:
            yield Check(Verdict.OK, f"policy {settings.policy.name}", "needs no bundle")
        return
    try:
        loaded = load_models(Path(directory))
    except ArtifactError as error:
        yield Check(Verdict.FAIL, "bundle", str(error))
        return
    parts = {"length": loaded.length, "latency": loaded.latency, "policy": loaded.policy}
    held = ", ".join(name for name, model in parts.items() if model is not None) or "nothing"
    yield Check(Verdict.OK, "bundle", f"version {loaded.version} in {directory} has {held}")
    if settings.policy.name == LEARNED and loaded.policy is None:
        message = "the bundle has no policy; the guard's fallback decides"
        yield Check(Verdict.WARN, "policy learned", message)


def _features(settings: RouterSettings) -> Check:
    if settings.policy.compiled is Compiled.NEVER:
        how = "by numpy, as policy.compiled says"
    elif not code_cache.numba_version():
        how = "by numpy; with numba ('pip install steersman[fast]') decisions take about 30 % less time"
    elif (folder := code_cache.cache_folder(code_cache.FEATURES)) is None:
        how = "by machine code, compiled anew at every start: no cache folder can be written"
    elif code_cache.features_file(folder).exists():
        how = "by machine code"
    else:
        how = "by machine code, which the first router to start will compile"
    return Check(Verdict.OK, "features", how)


def _outcome_log(settings: RouterSettings) -> Iterator[Check]:
    options = settings.outcome_log
    if not options.directory:
        message = "none is written: nothing can be learned from this traffic, or explained"
        yield Check(Verdict.WARN, "outcome log", message)
        return
    directory = Path(options.directory)
    existing = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
        free = shutil.disk_usage(existing).free
    except OSError as error:
        message = f"cannot write in {existing} ({error.strerror}); change it or outcome_log.directory"
        yield Check(Verdict.FAIL, "outcome log", message)
        return
    if free < options.total_bytes:
        message = (
            f"{free / 1e9:.1f} GB free in {existing}, under outcome_log.total_bytes "
            f"({options.total_bytes / 1e9:.1f} GB); records are lost when it is full"
        )
        yield Check(Verdict.WARN, "outcome log", message)
    else:
        yield Check(Verdict.OK, "outcome log", f"{directory} can be written")
