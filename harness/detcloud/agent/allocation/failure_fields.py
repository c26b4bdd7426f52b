"""The fields of an `exited` record that describe a failure of the training code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.entrypoint_failure import is_lasting_failure
from detcloud.agent.allocation.failure_fingerprint import failure_fingerprint
from detcloud.agent.allocation.limits import SCAN_BYTES, TRACEBACK_LINES_MAX
from detcloud.agent.allocation.trial_log import log_tail

if TYPE_CHECKING:
    from pathlib import Path

    from detcloud.agent.allocation.trial_reports import ReportReader
    from detcloud.agent.runtime import Status


_KINDS_BEFORE_TRAINING = frozenset({"environment", "alert", "gang_check", "gang_meeting", "exit"})
"""The reports of code that has not begun to train, and the report of the end."""


def failure_fields(
    status: Status, log: Path, tail: str, fault: str, reader: ReportReader
) -> dict[str, Any]:
    """Return the fields to add to the record of a failure.

    - A fault of the machine: the reason `lost`, so that the failure uses up no restart.
    - Code that cannot be loaded: `lasting`, because a restart would fail, too.
    - Otherwise the `fingerprint` of the last traceback, if the log has one.

    Args:
        status: the end of the launch.
        log: the trial's log.
        tail: the last lines of the log.
        fault: the fault of the machine by which the trial failed, or "".
        reader: the reader of the code's reports.
    """
    if fault:
        return {"reason": "lost", "message": f"the machine failed: {fault}"}
    if is_lasting_failure(status, tail, has_trained=_has_trained(reader)):
        return {"lasting": True}
    if status.stage != "trial":
        return {}
    fingerprint = failure_fingerprint(log_tail(log, TRACEBACK_LINES_MAX))
    return {"fingerprint": fingerprint} if fingerprint else {}


def _has_trained(reader: ReportReader) -> bool:
    """Whether the code has reported anything of its training, or a checkpoint."""
    return any(
        line.kind not in _KINDS_BEFORE_TRAINING
        for writer in reader.writers()
        for line in reader.read_lines(writer, 0, SCAN_BYTES)
    )
