"""Where a challenger comes from: its data, its code, its parent, its settings and seeds."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from steersman.traces.outcome_record import OutcomeRecord


def fingerprint(records: Iterable[OutcomeRecord]) -> str:
    """A digest of what is learned from; the same for the same records in the same order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(record.request_id.encode(errors="replace"))
        digest.update(record.served_by.encode(errors="replace"))
        digest.update(
            struct.pack(
                "<dddqq",
                record.arrival_unix_s,
                record.ttft_s,
                record.e2e_s,
                record.input_tokens,
                record.output_tokens or 0,
            )
        )
        digest.update(record.state.tobytes())
    return digest.hexdigest()[:16]


def lineage(
    records: tuple[OutcomeRecord, ...], *, log: str, parent: str, seed: int, settings: str
) -> Mapping[str, Any]:
    """What the bundle and its run are tagged with.

    Args:
        records: sound ones, by arrival; at least one.
        log: the log's directory.
        parent: version of the champion's bundle.
        settings: digest of the settings.
    """
    return {
        "trace": log,
        "fingerprint": fingerprint(records),
        "requests": len(records),
        "from": _utc(records[0].arrival_unix_s),
        "until": _utc(records[-1].arrival_unix_s),
        "parent": parent,
        "seed": seed,
        "settings": settings,
    }


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
