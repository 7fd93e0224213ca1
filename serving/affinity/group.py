"""Which group a request belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from steersman.agents.affinity import AffinitySettings, GroupKey
from steersman.traces.schema import Request


@dataclass(slots=True)
class Group:
    """A request's group, and where it is at home."""

    name: str
    """Says nothing about who it is: it may be stored on a server that others can read."""
    home: str | None = None
    """Id of a replica."""
    pinned: bool = False
    """Whether nobody else can serve it as well: it stays as long as the home may be chosen at all."""
    outcome: str = ""
    """What came of it at the last decision, as the metric tells it."""


def group_of(request: Request, user: str, settings: AffinitySettings) -> str | None:
    """The name of a request's group: by the first of the configured keys that it has.

    Groups are of one model and one tenant: what two tenants call alike is two groups.
    """
    for key in settings.keys:
        what = _MEANINGS[key](request, user, settings)
        if what:
            return f"{key.value}:{_hidden(request.model, request.tenant, *what)}"
    return None


def response_group(response_id: str, model: str, tenant: str) -> str:
    """The name under which it is remembered who holds a response; another tenant's is not found."""
    return f"response:{_hidden(model, tenant, response_id)}"


Meaning = Callable[[Request, str, AffinitySettings], Sequence[str]]


def _prefix(request: Request, _user: str, settings: AffinitySettings) -> Sequence[str]:
    """Its first blocks, if it has so many: each hash covers all blocks before it."""
    blocks = request.block_hashes
    at = settings.prefix_blocks - 1
    return (str(blocks[at]),) if len(blocks) > at else ()


_MEANINGS: dict[GroupKey, Meaning] = {
    GroupKey.SESSION: lambda request, _user, _settings: (
        (request.session_id,) if request.session_id else ()
    ),
    GroupKey.USER: lambda _request, user, _settings: (user,) if user else (),
    GroupKey.PREFIX: _prefix,
    GroupKey.TENANT: lambda request, _user, _settings: ("",) if request.tenant else (),
}


def _hidden(*parts: str) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.hexdigest()
