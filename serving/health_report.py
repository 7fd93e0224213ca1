"""What `/health` answers: how the fleet is, in JSON, for people and for other programs."""

from __future__ import annotations

from typing import Any

from steersman.predictors import ledger as L
from steersman.serving.pool import Fleet
from steersman.serving.replica import Replica


def health_report(fleet: Fleet, bundle: str, now_s: float) -> dict[str, Any]:
    """Names and counts, no addresses."""
    replicas = {replica.id: _tell_replica(fleet, replica, now_s) for replica in fleet.replicas}
    pools = {
        model: {
            "replicas": len(pool.ids),
            "healthy": int((fleet.state[pool.rows, L.HEALTHY] > 0).sum()),
        }
        for model, pool in fleet.pools.items()
    }
    served = [pool["healthy"] > 0 for pool in pools.values()]
    well = all(replica["healthy"] for replica in replicas.values())
    status = "ok" if served and all(served) and well else "degraded" if any(served) else "unavailable"
    return {"status": status, "bundle": bundle, "pools": pools, "replicas": replicas}


def _tell_replica(fleet: Fleet, replica: Replica, now_s: float) -> dict[str, Any]:
    state, standing = fleet.describe(replica, now_s), replica.standing
    return {
        "healthy": state.healthy,
        "draining": state.draining,
        "suspected": replica in fleet.trust.suspects,
        "circuit": standing.breaker.state(now_s).value,
        "outlier": standing.is_ejected(now_s),
        "ramp": round(fleet.trust.ramp(replica, now_s), 3),
        "inflight": state.inflight,
        "metrics_age_s": round(state.age_s, 3) if state.age_s < 1e9 else None,
    }
