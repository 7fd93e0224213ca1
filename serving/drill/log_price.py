"""What the outcome log costs a router."""

from __future__ import annotations

import time

from steersman.agents.guard import GuardSettings
from steersman.serving.drill.site import FLUSH_S, Bars, Site

LOG_CPU = "steersman_outcome_log_cpu_seconds_total"


def log_price(site: Site, requests: int, guard: GuardSettings, bars: Bars, *, seed: int) -> float:
    """Processor time of a router's outcome log, over that of all else it does for its requests.

    A router with and another without would differ by more than that, log or no log.
    """
    off = {"enabled": False}
    trace = site.trace(requests, seed)
    sections = {
        "outcome_log": {"directory": str(site.directory / "priced")},
        "shadow": off,
        "canary": off,
    }
    with site.router(guard, "router-priced", sections=sections) as pid:
        site.warm_up(trace)
        before_s, log_before_s = site.cpu_s(pid), site.metric(LOG_CPU)
        with bars("price of the outcome log", len(trace)) as advance:
            site.play(trace, advance)
        time.sleep(FLUSH_S)
        log_s = site.metric(LOG_CPU) - log_before_s
        return log_s / max(site.cpu_s(pid) - before_s - log_s, 1e-9)
