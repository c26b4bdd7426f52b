"""The agent's `exited` record, which says how an allocation ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from detcloud.shared.process_exits import exit_text, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.runtime import Status

LOG_LINES_SHOWN = 20
MESSAGE_CHARACTERS_MAX = 4000
NOTICE_CHARACTERS_MAX = 200
LOG_CHARACTERS_SHOWN = 3500
REVISION_MAX = 1 << 53
_RUN_HEADER = re.compile(r"\[detcloud\] run \d+ of trial \d+, ")

# The reasons that a trial may report; only the agent says that one was lost or killed.
NOTICE_OUTCOMES = frozenset({"saved", "finished", "kept"})
# The trial ended before it could say how its notice did.
_CUT, _CUTTING_REASONS = "cut", frozenset({"errored", "killed", "lost"})
# A process that failed after it reported one of these has not ended well.
_CLAIMS = frozenset({"completed", "stop_requested"})
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
    """The fields of `exited`; `notice`: why this machine is about to end, "" if it is not.

    `exits` are the last `exit` lines of the ranks, lowest rank first. A rank that refuses the
    hyperparameters speaks for all, since the others fail for want of it; then one that reports an
    error, else the lowest one. A process that fails after it reported a good end has failed: what
    comes after the block of `core.init` is part of the training code. After a kill by the agent an
    error is expected, so the reason is `killed`. `revision` is the directives' revision if no line
    names one.
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
        # Nothing ran whose log could tell more.
        message = status.cause
    elif not message and reason in ("errored", "lost"):
        remark = " after it reported a good end" if is_refuted else ""
        message = f"{_cause_text(status)}{remark}{_log_excerpt(log_tail)}"
    told = [str(line.get("notice_outcome")) for line in exits]
    outcome = next((one for one in told if one in NOTICE_OUTCOMES), "")
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


def _exit_order(report: Mapping[str, Any]) -> int:
    """The sort key of a rank's exit among all ranks'; the first exit stands for the trial's."""
    reason = report.get("reason")
    return _SPEAK_FIRST.index(reason) if reason in _SPEAK_FIRST else len(_SPEAK_FIRST)


def _legal_text(text: str, characters_max: int) -> str:
    # Half a surrogate pair would have the cluster refuse the record, and the exit with it.
    return text[:characters_max].encode("utf-8", "replace").decode()


def _cause_text(status: Status) -> str:
    if status.cause:
        return status.cause
    what = "startup-hook.sh" if status.stage == "hook" else "the trial's process"
    if status.lost:
        return "the trial's processes disappeared with the machine or were killed externally"
    if status.signal is not None:
        return f"{what} was ended by {signal_name(status.signal)}"
    if status.stage == "hook":
        return f"{what} failed with exit code {status.code}"
    remark = "" if status.code else " and reported no exit"
    return f"{what} {exit_text(status.code or 0)}{remark}"


def _log_excerpt(log_tail: str) -> str:
    lines = log_tail.splitlines(keepends=True)
    # The line with which a run begins says nothing of its end.
    text = "".join(line for line in lines if not _RUN_HEADER.match(line))
    return (
        f"; the end of its log:\n{text[-LOG_CHARACTERS_SHOWN:]}"
        if text.strip()
        else "; its log is empty"
    )
