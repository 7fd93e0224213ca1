"""`steersman shadow`: what a challenger would have done with logged traffic, and a verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli.promote import MLRUNS, Store, Tracking

if TYPE_CHECKING:
    from steersman.agents.guard import GuardSettings
    from steersman.agents.offpolicy.study import Study
    from steersman.traces.outcome_record import OutcomeRecord

app = typer.Typer(
    help="Challengers that look on: what they would have done, and a verdict.", no_args_is_help=True
)

CHAMPION = "mlruns/served/champion"
CHALLENGER = "mlruns/served/challenger"


@app.callback()
def shadow() -> None:
    """Challengers that look on: what they would have done, and a verdict."""


@app.command()
def report(
    log: Annotated[Path, typer.Option("--log", help="Directory of the outcome log.")],
    challenger: Annotated[Path, typer.Option(help="Directory of the challenger's bundle.")] = Path(
        CHALLENGER
    ),
    champion: Annotated[
        str | None,
        typer.Option(
            help="What it is compared with: a bundle's directory, 'shipped', or a policy's name; "
            f"default: what the log says, {CHAMPION} for a learned policy."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Whose pool to look at; default: the busiest.")] = "",
    window: Annotated[int, typer.Option(min=100, help="Newest records to look at, about.")] = 20_000,
    seeds: Annotated[int, typer.Option(min=2, help="Streams of the replay; claims need 5.")] = 10,
    requests: Annotated[int, typer.Option(min=100, help="Requests of a stream, at most.")] = 3_000,
    least: Annotated[int, typer.Option(min=1, help="Decisions that a verdict needs.")] = 500,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="By how much J may grow and be no worse.")
    ] = 0.02,
    guard: Annotated[
        Path | None,
        typer.Option(help="YAML file of guard settings; default: configs/policies/guard.yaml."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the replay.")] = 1,
    html: Annotated[Path | None, typer.Option(help="Write the report to this HTML page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Keep the verdict with the challenger in the model registry."),
    ] = False,
    mlruns: Store = MLRUNS,
    tracking_uri: Tracking = "",
) -> None:
    """Say whether a challenger should go on to a canary: better, no worse, worse, or not enough to tell.

    Reads the outcome log and the shadow log within it. What nobody scored while it was served is scored
    now, from what was logged.
    """
    from steersman.agents.offpolicy.contestants import contestant
    from steersman.agents.offpolicy.study import StudySettings, study
    from steersman.agents.offpolicy.verdict import Thresholds
    from steersman.cli.common import console, notes, progress
    from steersman.predictors.bundle import load_bundle
    from steersman.traces.outcome_log import read_newest
    from steersman.traces.shadow_record import DIRECTORY, read_shadow

    bundle = load_bundle(challenger)
    settings = _guard(guard)
    damaged: list[object] = []
    records = read_newest(log, window, lambda record: record)
    opinions = read_shadow(log / DIRECTORY, bundle.version, on_damage=damaged.append)
    if damaged:
        notes.print(f"{len(damaged)} places of the shadow log are damaged and were passed over")
    rival = contestant(champion or _champion_of(records), settings)
    plan = StudySettings(
        seeds=tuple(range(seeds)),
        requests=requests,
        thresholds=Thresholds(decisions=least, margin=margin),
        guard=settings,
        jobs=jobs,
    )
    with progress() as bar:
        task = bar.add_task("replaying", total=seeds, note="")
        found = study(
            records,
            opinions,
            bundle,
            rival,
            plan,
            model=model,
            now_unix_s=time.time(),
            on_progress=lambda streams: bar.advance(task, streams),
        )
    if json is not None:
        _write_json(found, json)
    if html is not None:
        _write_html(found, html)
    _print(found)
    for path in (html, json):
        if path is not None:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if record:
        _record(found, mlruns, tracking_uri)


def _record(found: Study, mlruns: Path, tracking_uri: str) -> None:
    """Keep the evidence with the registered version of the challenger."""
    from steersman.agents.registry import Registry
    from steersman.cli.common import notes
    from steersman.traces.errors import ArtifactError

    registry = Registry(mlruns, tracking_uri=tracking_uri)
    registry.store.check_exists()
    version = registry.find(found.challenger)
    if version is None:
        raise ArtifactError(
            f"--record: {registry.store.place} has no version of bundle {found.challenger}; register it "
            "first"
        )
    registry.record_evidence(version, found.evidence)
    notes.print(f"the verdict is kept with version {version}", highlight=False)


def _guard(path: Path | None) -> GuardSettings:
    from steersman.agents.guard import GuardSettings
    from steersman.traces.settings import CONFIG_ROOT, load_settings

    return load_settings(path or CONFIG_ROOT / "policies" / "guard.yaml", GuardSettings)


def _champion_of(records: Sequence[OutcomeRecord]) -> str:
    """Who made the log's decisions.

    Raises:
        ConfigError: nobody that can be told from it.
    """
    from steersman.agents.offpolicy.contestants import SHIPPED
    from steersman.agents.policies import POLICY_NAMES
    from steersman.predictors.bundle import bundle_signature
    from steersman.traces.errors import ConfigError

    counts = Counter(
        "learned" if record.fallback_reason else record.policy for record in records if record.policy
    )
    name = counts.most_common(1)[0][0] if counts else ""
    if name == "learned":
        return CHAMPION if bundle_signature(CHAMPION) is not None else SHIPPED
    if name in POLICY_NAMES:
        return name
    raise ConfigError(f"--champion: the log's policy '{name}' is not known here; name what it was")


def _write_json(found: Study, path: Path) -> None:
    import orjson

    from steersman.traces.errors import ConfigError

    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(document(found), option=options) + b"\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error}); give another path") from None


def _write_html(found: Study, path: Path) -> None:
    from steersman.agents.report.page import write
    from steersman.agents.report.shadow import shadow_page
    from steersman.cli.common import command_line
    from steersman.traces.errors import ConfigError

    try:
        write(shadow_page(found, commands=[command_line()]), path)
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written ({error}); give another path") from None


def document(found: Study) -> dict[str, Any]:
    """All figures, for machines."""
    matched, world = found.matched, found.world
    return {
        "evidence": asdict(found.evidence),
        "model": found.model,
        "records": found.records,
        "span_s": found.span_s,
        "decisions": len(matched),
        "live": matched.live,
        "failed": matched.failed,
        "passed_over": matched.passed_over,
        "checked": matched.checked,
        "differing": matched.differing,
        "agreement": None if found.agreement is None else asdict(found.agreement),
        "predictions": [_without_columns(each) for each in found.accuracies],
        "predictions_where_both_agree": [_without_columns(each) for each in found.agreed],
        "off_policy": asdict(found.ope),
        "kinds": []
        if world is None
        else [
            {
                "profile": asdict(kind.profile),
                "replicas": kind.replicas,
                "fitted": kind.fit is not None,
                "note": kind.note,
            }
            for kind in world.kinds
        ],
        "fidelity": [
            {"figure": line.figure, "measured_s": line.measured_s, "error": line.after}
            for line in found.fidelity
        ],
        "replay": None if found.table is None else found.table.as_dict(),
        "learning": {
            "alarms": [asdict(alarm) for alarm in found.learning.alarms],
            "statistics": [
                {"hardware": hardware, "target": target, "statistic": value}
                for (hardware, target), value in found.learning.statistics.items()
            ],
            "corrections": [asdict(each) for each in found.learning.corrections],
            "versions": [asdict(each) for each in found.learning.versions],
        },
        "notes": list(found.notes),
    }


def _without_columns(accuracy: Any) -> dict[str, Any]:
    return {k: v for k, v in asdict(accuracy).items() if k not in ("actual", "predicted")}


def _print(found: Study) -> None:
    from steersman.agents.report.shadow import WORDS
    from steersman.cli.common import console

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    matched = found.matched
    line(f"{found.challenger} against {found.champion}: {WORDS[found.evidence.verdict]}")
    for reason in found.evidence.reasons:
        line(f"  - {reason}")
    line(
        f"{len(matched)} decisions, {matched.live} scored while they were served; "
        + (f"{found.agreement.overall.agree:.1%} the same" if found.agreement else "none to compare")
    )
    for note in found.notes:
        line(f"note: {note}")
