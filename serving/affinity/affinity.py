"""The two stages in the router: look the home up, ask the rule, remember the choice."""

from __future__ import annotations

from steersman.agents.affinity import AffinitySettings, Stickiness
from steersman.agents.affinity.rule import AFFINITY
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.serving.affinity.group import Group, group_of, response_group
from steersman.serving.affinity.store import HomeStore
from steersman.serving.intake import Intake
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Pool
from steersman.traces.schema import Decision, Observation, Request


class Affinity:
    """One for the whole router.

    Args:
        settings: what makes a group.
        store: of groups' homes.
        responses: of stored responses' homes; they last longer.
        metrics: count what came of it.
        clock: of group sizes.
    """

    def __init__(
        self,
        settings: AffinitySettings,
        store: HomeStore,
        responses: HomeStore,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._responses = responses
        self._rule = Stickiness(settings)
        self._metrics = metrics
        self._clock = clock

    async def group(self, intake: Intake, request: Request, pool: Pool) -> Group | None:
        """A request's group with its home, None if it has none or may go anywhere."""
        previous = intake.previous_response
        if previous:
            group = response_group(previous, request.model, request.tenant)
            home = await self._responses.find(group)
            if home is not None:
                return Group(group, home, pinned=True)
        if not self._settings.keys:
            return None
        name = group_of(request, intake.user, self._settings)
        if not self._rule.binds(name, len(pool.ids), self._clock()) or name is None:
            if name is not None:
                self._metrics.affinity.labels("too_large").inc()
            return None
        return Group(name, await self._store.find(name))

    def decide(
        self, group: Group | None, pool: Pool, observation: Observation, policy: Policy
    ) -> Decision:
        """The group's home, or what the policy says; where it goes is the group's home from now on."""
        if group is None:
            return policy.decide(observation)
        home = pool.ids.index(group.home) if group.home in pool.ids else None
        if group.pinned:
            may = home is not None and bool(observation.mask[home])
            group.outcome = "pinned" if may else "holder_gone"
            self._metrics.affinity.labels(group.outcome).inc()
            return Decision(home, AFFINITY) if may and home is not None else policy.decide(observation)
        decision = self._rule.decide(home, observation, policy)
        if decision.choice != NO_CANDIDATE:
            group.outcome = (
                "new" if group.home is None else "stayed" if decision.choice == home else "moved"
            )
            self._metrics.affinity.labels(group.outcome).inc()
            group.home = pool.ids[decision.choice]
            self._store.bind(group.name, group.home)
        return decision

    def keep_response(self, response_id: str, request: Request, replica: str) -> None:
        """A replica may hold this response, to be asked for by its id."""
        self._responses.bind(response_group(response_id, request.model, request.tenant), replica)
