"""What MLflow and its database layers raise, in one line that says what to mend."""

from __future__ import annotations

from pathlib import Path

_AWAY = ("Max retries", "Connection", "timed out", "Timeout", "API request to")


def explain(text: str, root: Path, uri: str) -> str:
    """Of the local store under `root`."""
    reason = " ".join(text.split())
    database = root / "mlflow.db"
    lines = {
        ("database is locked",): f"{database}: is locked by another process; wait for it or stop it, "
        "then try again",
        ("not a database", "malformed"): f"{database}: is damaged; move it away, a new one is made on "
        "the next run",
        ("unable to open database", "readonly database"): f"{root}: cannot be written; give a writable "
        "directory for the MLflow store",
        ("RESOURCE_DOES_NOT_EXIST", "not found"): f"{root}: {reason[:200]}; record one with "
        "'steersman train'",
        ("Can't locate revision", "out-of-date"): f"{database}: made by another MLflow version; run "
        f"'mlflow db upgrade {uri}'",
    }
    for marks, line in lines.items():
        if any(mark in reason for mark in marks):
            return line
    return f"{root}: the MLflow store refused: {reason[:200]}; check the directory"


def explain_server(text: str, place: str) -> str:
    """Of an MLflow server."""
    reason = " ".join(text.split())
    if "RESOURCE_DOES_NOT_EXIST" in reason or "not found" in reason:
        return f"{place}: {reason[:200]}; record one with 'steersman train'"
    if any(mark in reason for mark in _AWAY):
        return f"{place}: the MLflow server does not answer; start it, or check the address"
    return f"{place}: the MLflow server refused: {reason[:200]}; check its log"
