"""Checkpoints of a training: tensors and plain numbers, read back without executing anything.

They are for resuming a training, never for serving.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from steersman.agents.learned.config import PolicySettings
from steersman.agents.learned.counterfactual import States
from steersman.agents.learned.network import RoutingNetwork
from steersman.traces.errors import ArtifactError

FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stood."""

    network: RoutingNetwork
    best: RoutingNetwork
    told: list[list[float]]
    """Of the evolution, see `Evolution.told`."""
    numbers: dict[str, float]
    curves: dict[str, list[tuple[int, float]]]
    states: States | None
    """None before any were asked about."""


def save_checkpoint(path: Path, checkpoint: Checkpoint, settings: PolicySettings) -> None:
    """Write a checkpoint, replacing an older one in one move.

    Raises:
        ArtifactError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    content = {
        "format": FORMAT,
        "settings": _identity(settings),
        "network": checkpoint.network.state_dict(),
        "best": checkpoint.best.state_dict(),
        "told": checkpoint.told,
        "numbers": checkpoint.numbers,
        "curves": checkpoint.curves,
        "states": None if checkpoint.states is None else dict(vars(checkpoint.states)),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, part)
        part.replace(path)
    except OSError as error:
        raise ArtifactError(
            f"{path}: the checkpoint cannot be written ({error.strerror}); give a writable directory"
        ) from None


def load_checkpoint(path: Path, settings: PolicySettings, like: RoutingNetwork) -> Checkpoint:
    """Read a checkpoint of a training with the same settings (the budget may differ).

    Args:
        like: a network of the wanted shape.

    Raises:
        ArtifactError: it is damaged, or of other settings.
    """
    try:
        # Tensors and plain containers only: nothing in the file can run code.
        content: dict[str, Any] = torch.load(path, weights_only=True)
        if content["format"] != FORMAT or content["settings"] != _identity(settings):
            raise ArtifactError(
                f"{path}: is of a training with other settings; train without --resume, or with the same"
            )
        network, best = copy.deepcopy(like), copy.deepcopy(like)
        network.load_state_dict(content["network"])
        best.load_state_dict(content["best"])
        states = None if content["states"] is None else States(**content["states"])
        return Checkpoint(network, best, content["told"], content["numbers"], content["curves"], states)
    except pickle.UnpicklingError:
        reason = "it is damaged, or holds more than tensors and numbers"
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
    raise ArtifactError(f"{path}: not a usable checkpoint ({reason}); train without --resume")


def _identity(settings: PolicySettings) -> str:
    """What must agree between two parts of one training."""
    return settings.model_dump_json(exclude={"budget_s", "evolution_share", "ppo_share", "check"})
