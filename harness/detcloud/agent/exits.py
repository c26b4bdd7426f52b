"""How an allocation ended, as the agent's `exited` record says it."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.runtime import Status

LOG_LINES_SHOWN = 20
MESSAGE_CHARACTERS_MAX = 4000
NOTICE_CHARACTERS_MAX = 200
LOG_CHARACTERS_SHOWN = 3500
SHELL_SIGNALS = 128
REVISION_MAX = 1 << 53
_RUN_HEADER = re.compile(r"\[detcloud\] run \d+ of trial \d+, ")

# What a trial may say of its own end; that it was lost or killed is for the agent to say.
SAID = frozenset({"completed", "preempted", "idle", "invalid_hp", "stop_requested", "errored"})


def exited_record(
    status: Status,
    exits: Sequence[Mapping[str, Any]],
    log_tail: str,
    *,
    revision: int,
    notice: str = "",
) -> dict[str, Any]:
    """The fields of `exited`; `notice`: why this machine is about to end, "" if it is not.

    `exits` are the last `exit` lines of the ranks, lowest rank first. A rank that reports an error
    speaks for all, else the lowest one does. After a kill by the agent an error is no news, so the
    reason is `killed`. `revision` is the directives' revision if no line names one.
    """
    said = next((e for e in exits if e.get("reason") == "errored"), exits[0] if exits else None)
    reason = str(said.get("reason")) if said else "errored"
    if reason not in SAID:
        reason = "errored"
    if status.killed and reason == "errored":
        reason = "killed"
    elif status.lost and said is None:
        reason = "lost"
    elif status.not_started and said is None:
        reason = "start_failed"
    message = str(said.get("message") or "") if said else ""
    if not message and status.cause and not status.stage:
        # Nothing ran whose log could tell more.
        message = status.cause
    elif not message and reason in ("errored", "lost"):
        message = f"{_cause(status)}{_quoted(log_tail)}"
    seen = said.get("directive_revision") if said else None
    known = type(seen) is int and 0 <= seen < REVISION_MAX
    return {
        "code": status.code,
        "signal": status.signal,
        "reason": reason,
        "directive_revision": seen if known else revision,
        "message": _legal(message, MESSAGE_CHARACTERS_MAX),
        **({"notice": _legal(notice, NOTICE_CHARACTERS_MAX)} if notice else {}),
    }


def _legal(text: str, characters_max: int) -> str:
    # Half a surrogate pair would have the cluster refuse the record, and the exit with it.
    return text[:characters_max].encode("utf-8", "replace").decode()


def _cause(status: Status) -> str:
    if status.cause:
        return status.cause
    what = "startup-hook.sh" if status.stage == "hook" else "the trial's process"
    if status.lost:
        return "the trial's processes disappeared with the machine or were killed from outside"
    if status.signal is not None:
        return f"{what} was ended by {_signal_name(status.signal)}"
    if status.stage == "hook":
        return f"{what} failed with exit code {status.code}"
    unsaid = "" if status.code else " and reported no exit"
    if status.code is not None and status.code > SHELL_SIGNALS:
        # A shell that ran the command tells in this way of the signal that ended it.
        unsaid = f", that is {_signal_name(status.code - SHELL_SIGNALS)}"
    return f"{what} ended with exit code {status.code}{unsaid}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name


def _quoted(log_tail: str) -> str:
    lines = log_tail.splitlines(keepends=True)
    # How a run begins says nothing of how it ended.
    said = "".join(line for line in lines if not _RUN_HEADER.match(line))
    return (
        f"; the end of its log:\n{said[-LOG_CHARACTERS_SHOWN:]}"
        if said.strip()
        else "; its log is empty"
    )
