"""Notes about expired logs and metrics that the cluster has deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detcloud.cli.rendering.output import print_note
from detcloud.cli.rendering.table import time_text
from detcloud.shared.plurals import count_text


def note_deleted_logs(trials: Iterable[Mapping[str, Any]]) -> None:
    """Print a note to stderr if expired logs of any of the trials were deleted.

    Args:
        trials: trials, as the API describes them.
    """
    _note_deleted(trials, "logs_deleted_ms", "logs")


def note_deleted_metrics(trials: Iterable[Mapping[str, Any]]) -> None:
    """Print a note to stderr if expired detailed metrics of any of the trials were deleted.

    Args:
        trials: trials, as the API describes them.
    """
    _note_deleted(trials, "metrics_deleted_ms", "detailed metrics")


def _note_deleted(trials: Iterable[Mapping[str, Any]], field: str, data: str) -> None:
    """Print a note with the latest time in a field of the trials, or nothing without a time."""
    found = [(trial["id"], trial[field]) for trial in trials if trial.get(field)]
    if not found:
        return
    ids = [trial_id for trial_id, _ in found]
    subject = f"trial {ids[0]}" if len(ids) == 1 else count_text(len(ids), "trial")
    when = time_text(max(time_ms for _, time_ms in found))
    print_note(f"{data} of {subject} were deleted on {when}, after their retention had ended")
