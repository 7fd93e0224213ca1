"""What a connection to a replica may fail with.

::

    WireError
    ├── CannotConnect     nothing was sent
    │   └── CannotResolve
    ├── ConnectionClosed  before the answer began; the request may have arrived
    ├── AnswerBroken      after it began
    └── NotHttp           the answer is not HTTP, or larger in its headers than anything sane
"""

from __future__ import annotations

import os


class WireError(Exception):
    """The message is a few words, without addresses or headers."""


class CannotConnect(WireError):  # noqa: N818 (they read as what happened)
    """Refused, unreachable, or its certificate is not to be trusted."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot connect ({why})")

    @classmethod
    def because(cls, error: OSError) -> CannotConnect:
        """In the operating system's words; those of event loops name addresses."""
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "")
        if not reason and error.errno is not None:
            reason = os.strerror(error.errno)
        return cls(str(reason or type(error).__name__))


class CannotResolve(CannotConnect):
    """Its name has no address."""

    def __init__(self) -> None:
        WireError.__init__(self, "its host name cannot be resolved")


class ConnectionClosed(WireError):  # noqa: N818
    """It closed the connection instead of answering."""

    def __init__(self) -> None:
        super().__init__("it closed the connection")


class AnswerBroken(WireError):  # noqa: N818
    """The connection ended before the answer did."""

    def __init__(self) -> None:
        super().__init__("its answer broke off")


class NotHttp(WireError):  # noqa: N818
    """What it sent cannot be understood."""

    def __init__(self) -> None:
        super().__init__("its answer is not HTTP")
