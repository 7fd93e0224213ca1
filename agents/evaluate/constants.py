"""Tuned constants as files: `configs/policies/tuned/SCENARIO/POLICY.yaml`, `ALL` for all scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from steersman.agents.evaluate.tune import Tuned
from steersman.traces.errors import ConfigError
from steersman.traces.settings import CONFIG_ROOT, Settings, load_settings

FOLDER = CONFIG_ROOT / "policies" / "tuned"
ALL = "all"
"""Where the constants lie that were tuned once over all scenarios together."""


class TunedSettings(Settings):
    """Constants that `steersman evaluate tune` found."""

    policy: str = Field(description="Whose constants these are.")
    options: dict[str, float | int | str] = Field(description="The constants found.")
    scenarios: list[str] = Field(description="Where they were tuned, on the tuning split.")
    score: float = Field(gt=0, description="Cost J there over that with the published ones.")
    evaluations: int = Field(ge=1, description="Sets of constants tried.")
    requests: int = Field(ge=1, description="Counted requests of an episode.")
    loads: list[float] = Field(description="Loads of the episodes of one evaluation.")
    seed: int = Field(description="Of the search.")
    commit: str = Field(default="", description="Source that was tuned.")
    bundle: str = Field(default="", description="Trained models that predicted; empty: the rules did.")
    command: str = Field(description="What finds them again.")


def tuned_path(policy: str, scenario: str, folder: Path = FOLDER) -> Path:
    """Where a policy's constants for a scenario (or ALL) lie."""
    return folder / scenario / f"{policy}.yaml"


def load_tuned(policy: str, scenario: str, folder: Path = FOLDER) -> TunedSettings:
    """Constants that were found.

    Raises:
        ConfigError: none are there, or the file is wrong.
    """
    path = tuned_path(policy, scenario, folder)
    if not path.is_file():
        once = " --once" if scenario == ALL else ""
        where = "" if scenario == ALL else f" --scenario {scenario}"
        raise ConfigError(
            f"policy '{policy}' is not tuned for '{scenario}' ({path} is missing); "
            f"run `steersman evaluate tune --policy {policy}{where}{once}`"
        )
    return load_settings(path, TunedSettings)


def save_tuned(tuned: Tuned, scenario: str, about: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write constants down.

    Args:
        about: the other keys of `TunedSettings`.
    """
    settings = TunedSettings(
        policy=tuned.policy,
        options=tuned.options,
        score=round(tuned.score, 4),
        evaluations=tuned.evaluations,
        **about,
    )
    path = tuned_path(tuned.policy, scenario, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "# Made by `steersman evaluate tune`; docs/evaluation.md tells how.\n"
    lines = [_line(key, value) for key, value in settings.model_dump().items()]
    path.write_text(head + "".join(lines), encoding="utf-8")
    return path


def _line(key: str, value: object) -> str:
    """A key with what it means."""
    meaning = (TunedSettings.model_fields[key].description or "").rstrip(".")
    shown = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    shown = shown.removesuffix("\n").removesuffix("\n...")
    return f"{key}: {shown}  # {meaning[0].lower()}{meaning[1:]}\n"
