"""The agent's `exited` record, which says how an allocation ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from detcloud.shared.process_exits import LOG_QUOTE, exit_text, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.runtime import Status

LOG_LINES_SHOWN = 20
MESSAGE_CHARACTERS_MAX = 4000
NOTICE_CHARACTERS_MAX = 200
LOG_CHARACTERS_SHOWN = 3500
REVISION_MAX = 1 << 53
_RUN_HEADER = re.compile(r"\[detcloud\] run \d+ of trial \d+, ")

# The reactions to a notice that a trial may report.
NOTICE_OUTCOMES = frozenset({"saved", "finished", "kept"})
# The agent's outcome for a trial that ended before it could report an outcome.
_CUT, _CUTTING_REASONS = "cut", frozenset({"errored", "killed", "lost"})
# Reported reasons that a failing exit code or a signal refutes.
_CLAIMS = frozenset({"completed", "stop_requested"})
# The names of the stages before the trial.
_STAGE_NAMES = {
    "packages": "the installation of declared packages (environment.pip or environment.uv)",
    "hook": "startup-hook.sh",
}
_SPEAK_FIRST = ("invalid_hp", "errored")
REPORTABLE_REASONS = frozenset(
    {"completed", "preempted", "idle", "invalid_hp", "stop_requested", "errored"}
)


def exit_record(
    status: Status,
    exits: Sequence[Mapping[str, Any]],
    log_tail: str,
    *,
    revision: int,
    notice: str = "",
) -> dict[str, Any]:
    """Return the fields of the `exited` record of a trial.

    One rank's exit decides: a rank with `invalid_hp`, else with `errored`, else the lowest rank.
    Without exits or with an unknown reason, the reason is `errored`. If the process fails after a
    reported good end, the reason is `errored`. After a kill, `errored` becomes `killed`. Without
    exits, the reason is `lost` or `start_failed` if the status says so. `notice_outcome` is the
    first reported outcome. With a notice but without an outcome, a failed trial has `cut`.

    Args:
        status: the end of the launch.
        exits: the last `exit` line of each rank, the lowest rank first.
        log_tail: the last lines of the log, which become part of the message of a failure.
        revision: the directives' revision, if the deciding exit names none.
        notice: the reason of the machine's announced end, or "".
    """
    report = min(exits, key=_exit_order, default=None)
    reason = str(report.get("reason")) if report else "errored"
    if reason not in REPORTABLE_REASONS:
        reason = "errored"
    has_failed = bool(status.code) or status.signal is not None
    is_refuted = reason in _CLAIMS and has_failed and not (status.killed or status.lost)
    if is_refuted:
        reason = "errored"
    if status.killed and reason == "errored":
        reason = "killed"
    elif status.lost and report is None:
        reason = "lost"
    elif status.not_started and report is None:
        reason = "start_failed"
    message = str(report.get("message") or "") if report else ""
    if not message and status.cause and not status.stage:
        # No stage ran, so the log cannot explain the failure.
        message = status.cause
    elif not message and reason in ("errored", "lost"):
        remark = " after it reported a good end" if is_refuted else ""
        message = f"{_cause_text(status)}{remark}{_log_excerpt(log_tail)}"
    told = [str(line.get("notice_outcome")) for line in exits]
    outcome = next((one for one in told if one in NOTICE_OUTCOMES), "")
    if status.killed and not notice:
        # The trial reacted to the kill's deadline, not to an end of the machine.
        outcome = ""
    if notice and not outcome and reason in _CUTTING_REASONS:
        outcome = _CUT
    seen = report.get("directive_revision") if report else None
    is_valid = type(seen) is int and 0 <= seen < REVISION_MAX
    return {
        "code": status.code,
        "signal": status.signal,
        "reason": reason,
        "directive_revision": seen if is_valid else revision,
        "message": _legal_text(message, MESSAGE_CHARACTERS_MAX),
        **({"notice": _legal_text(notice, NOTICE_CHARACTERS_MAX)} if notice else {}),
        **({"notice_outcome": outcome} if outcome else {}),
    }


def failed_start(reason: str, message: str, is_lasting: bool, revision: int) -> dict[str, Any]:
    """Return the fields of the `exited` record of a trial that never ran.

    Args:
        reason: the reason of the exit.
        message: the text for users.
        is_lasting: whether a restart would fail, too. Only counts for the reason `errored`.
        revision: the directives' revision.
    """
    return {
        "code": None,
        "signal": None,
        "reason": reason,
        "directive_revision": revision,
        "message": message,
        **({"lasting": True} if is_lasting and reason == "errored" else {}),
    }


def _exit_order(report: Mapping[str, Any]) -> int:
    """Return the sort key of a rank's exit. The exit that sorts first decides for the trial."""
    reason = report.get("reason")
    return _SPEAK_FIRST.index(reason) if reason in _SPEAK_FIRST else len(_SPEAK_FIRST)


def _legal_text(text: str, characters_max: int) -> str:
    # The cluster would refuse a record with half a surrogate pair, and so miss the exit.
    return text[:characters_max].encode("utf-8", "replace").decode()


def _cause_text(status: Status) -> str:
    if status.cause:
        return status.cause
    what = _STAGE_NAMES.get(status.stage, "the trial's process")
    if status.lost:
        return "the trial's processes disappeared with the machine or were killed externally"
    if status.signal is not None:
        return f"{what} was ended by {signal_name(status.signal)}"
    if status.stage in _STAGE_NAMES:
        return f"{what} failed with exit code {status.code}"
    remark = "" if status.code else " and reported no exit"
    return f"{what} {exit_text(status.code or 0)}{remark}"


def _log_excerpt(log_tail: str) -> str:
    lines = log_tail.splitlines(keepends=True)
    # The header line of a run does not explain the end.
    text = "".join(line for line in lines if not _RUN_HEADER.match(line))
    return f"{LOG_QUOTE}\n{text[-LOG_CHARACTERS_SHOWN:]}" if text.strip() else "; its log is empty"
