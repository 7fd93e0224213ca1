"""When a pool is saturated, and how much of an engine a request takes: from what policies see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steersman.agents.queueing.settings import QueueSettings
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.schema import Observation

_WAITING = REPLICA_INDEX["waiting"]
_KV_USAGE = REPLICA_INDEX["kv_usage"]
_BATCH_USE = REPLICA_INDEX["batch_use"]
_INFLIGHT = REPLICA_INDEX["inflight"]
_QUEUE = REPLICA_INDEX["queue"]
_TTFT = REPLICA_INDEX["ttft_s"]
_TPOT = REPLICA_INDEX["tpot_s"]
_INFLICTED = REPLICA_INDEX["inflicted_s"]
_TTFT_SLO = REQUEST_INDEX["ttft_slo_s"]
_TPOT_SLO = REQUEST_INDEX["tpot_slo_s"]


def has_room(seen: Observation, settings: QueueSettings, level: int) -> NDArray[np.bool_]:
    """Candidates that this request may go to without waiting there for long, (n,).

    Args:
        seen: by a single request.
        settings: what counts as full.
        level: 0 to 3, for which class; lower ones leave some room to the higher.

    One where nothing of ours is under way always has room, so that no metrics and no estimate, however
    wrong, stop the traffic.
    """
    replicas = seen.replicas
    full = replicas[:, _WAITING] > settings.waiting
    full |= replicas[:, _KV_USAGE] > settings.kv_usage
    full |= replicas[:, _BATCH_USE] > settings.batch_use
    full |= replicas[:, _TPOT] > settings.tpot_share[level] * seen.request[_TPOT_SLO]
    full |= replicas[:, _TTFT] > settings.ttft_share[level] * seen.request[_TTFT_SLO]
    full &= replicas[:, _INFLIGHT] >= 1.0
    room: NDArray[np.bool_] = seen.mask & ~full
    return room


def narrowed(seen: Observation, room: NDArray[np.bool_]) -> Observation:
    """The same, with no other candidates than these."""
    return replace(seen, mask=room)


def work_s(seen: Observation) -> float:
    """Engine time that this request takes from each of the others, the mean over candidates: its prefill
    and, for every token it is predicted to produce, how much longer an iteration is with it."""
    taken = seen.replicas[:, _INFLICTED] / np.maximum(seen.replicas[:, _QUEUE], 1.0)
    return float(taken.mean(where=seen.mask)) if seen.mask.any() else 0.0


def late_after_s(seen: Observation) -> float:
    """For how long from its arrival a request can be held and still meet its TTFT objective.

    What the first token takes from dispatch on is foreseen as on the best candidate now, but for at
    most half of the objective: what is seen while all are full says little about the time when it goes.
    """
    objective_s = float(seen.request[_TTFT_SLO])
    ttft_s = float(seen.replicas[:, _TTFT].min(where=seen.mask, initial=np.inf))
    return objective_s - min(ttft_s, 0.5 * objective_s)
