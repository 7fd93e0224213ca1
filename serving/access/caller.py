"""Somebody who was let in, and what that permits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from steersman.serving.access.settings import RateSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.headers import PRIORITY, TENANT, Hints
from steersman.traces.schema import Priority

NO_RATES = RateSettings()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    key_id: str = ""
    """Empty where no keys are asked for."""
    tenant: str = ""
    """Empty: the tenant header says."""
    models: tuple[str, ...] = ()
    """Patterns; empty: all."""
    top_priority: Priority = Priority.INTERACTIVE
    rates: RateSettings = NO_RATES
    """Of its key."""
    tenant_rates: RateSettings = NO_RATES

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit on what may be asked for in a time."""
        return self.rates is not NO_RATES or self.tenant_rates is not NO_RATES

    def allows(self, *names: str) -> bool:
        """Whether a model may be asked for that has these names."""
        return not self.models or any(
            name and fnmatchcase(name, pattern) for name in names for pattern in self.models
        )

    def check_model(self, *names: str) -> None:
        """Raises:
        ApiError: 403, the model is not among those the key permits.
        """
        if not self.allows(*names):
            message = "this API key may not use this model; see /v1/models, or ask for another key"
            raise ApiError(403, Code.MODEL_NOT_ALLOWED, message, param="model")

    def take(self, hints: Hints) -> Hints:
        """The hints as they count for this caller.

        Who does not say how urgent it is gets the most urgent class permitted.

        Raises:
            ApiError: 403, asked in so many words for another tenant or a more urgent class.
        """
        tenant, priority = hints.tenant, hints.priority
        if self.tenant and tenant not in {"", self.tenant}:
            raise _forbidden(Code.TENANT_NOT_ALLOWED, TENANT[0], "leave the header away")
        if priority < self.top_priority:
            if hints.says_priority:
                fix = f"use {self.top_priority.value} to 3"
                raise _forbidden(Code.PRIORITY_NOT_ALLOWED, PRIORITY[0], fix)
            priority = self.top_priority
        tenant = self.tenant or tenant
        if tenant == hints.tenant and priority == hints.priority:
            return hints
        return replace(hints, tenant=tenant, priority=priority)


ANYBODY = Caller()
"""Everybody, where no keys are asked for."""


def _forbidden(code: Code, name: bytes, fix: str) -> ApiError:
    header = name.decode()
    message = f"this API key does not permit that value of {header}; {fix}"
    return ApiError(403, code, message, param=header)
