"""The exit status of a container, from the engine's state and the supervisor's records.

The engine knows that the container ended, the records contain the kind of end. The trial can write
the records. The agent therefore only reads the kind of end, and only if the container's exit code,
which the supervisor sets, agrees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detcloud.agent.docker.engine import EngineError
from detcloud.agent.runtime import Phase, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES = ("packages", "hook", "trial")
SIGNALS_MAX = 64
# The supervisor's exit code is this number plus the signal that ended the trial, as in shells.
SIGNAL_CODES = 128
# The exit codes of a container if the engine was stopped or the machine went down.
ENDED_FROM_OUTSIDE = (137, 143)


@dataclass(frozen=True, slots=True)
class EndedContainer:
    """A container that has ended."""

    state: Mapping[str, Any]
    """The engine's state of the container. Empty if the engine no longer has the container."""
    record: Mapping[str, Any] | None
    """The content of the supervisor's exit.json, or None. Untrusted."""
    begun: bool
    """Whether the supervisor had started."""
    killed: bool
    """Whether the agent had requested the end."""
    memory_bytes: int = 0
    """The container's memory limit. 0 is no limit."""


def exit_status(ended: EndedContainer, printed: str = "") -> Status:
    """Return the status of an ended container.

    A valid record that agrees with the container's exit code decides. Without such a record, the
    launch counts as killed if the agent requested the end. Otherwise it ran out of memory if the
    engine says so, is lost if the supervisor had begun or the engine was stopped, or else could not
    start the supervisor. A record of a kill that the agent did not request gives a lost launch. If
    memory ran out, the cause says so, unless the recorded exit code is 0.

    Args:
        ended: the container.
        printed: the container's output to the engine, for the cause of a failed start.
    """
    cause = _out_of_memory(ended.memory_bytes) if ended.state.get("OOMKilled") else ""
    recorded = _recorded_status(ended.record)
    if recorded is not None and not _agrees(recorded, ended.state):
        recorded = None
    if recorded is not None and recorded.killed and not ended.killed:
        # The engine, the machine or the container was stopped from outside.
        return Status(Phase.ENDED, lost=True)
    if recorded is not None:
        return replace(recorded, cause=cause if recorded.code != 0 else "")
    code = int(ended.state.get("ExitCode") or 0)
    if ended.killed:
        return Status(Phase.ENDED, code=code, killed=True)
    if cause:
        return Status(Phase.ENDED, "trial", code, cause=cause)
    if ended.begun or code in ENDED_FROM_OUTSIDE:
        return Status(Phase.ENDED, lost=True)
    output = f", and said: {printed.strip()}" if printed.strip() else ""
    cause = (
        f"the container ended with exit code {code} before the trial began{output}; its image must "
        "have Python 3.11 or newer as python3"
    )
    return Status(Phase.ENDED, code=code, cause=cause)


def creation_refused_status(error: EngineError) -> Status:
    """Return the status of a container that the engine refused to create or start.

    For status 400, the trial's request was wrong. For any other status, the machine is at fault,
    and `not_started` is True.
    """
    cause = f"the container could not be started: {error.message}"
    return Status(Phase.ENDED, cause=cause, not_started=error.status != 400)


def engine_unavailable_status(trouble: str) -> Status:
    """Return the status of a container that was not started because the engine did not answer.

    `trouble` is the reason for the cause. `not_started` is True.
    """
    cause = f"the container could not be started: {trouble}"
    return Status(Phase.ENDED, cause=cause, not_started=True)


def _recorded_status(record: Mapping[str, Any] | None) -> Status | None:
    """Return the status in the supervisor's record.

    Return None without a record, or if the supervisor would not have written the record.
    """
    if record is None:
        return None
    stage, code, number = (record.get(name) for name in ("stage", "code", "signal"))
    if stage not in ("", *STAGES) or not isinstance(record.get("killed"), bool):
        return None
    by_itself = type(code) is int and 0 <= code <= 255 and number is None
    by_signal = type(number) is int and 0 < number <= SIGNALS_MAX and code is None
    if not by_itself and not by_signal:
        return None
    return Status(Phase.ENDED, stage, code, number, killed=record["killed"])


def _agrees(recorded: Status, state: Mapping[str, Any]) -> bool:
    """Whether the recorded end agrees with the container's exit code.

    True if the engine no longer has the container.
    """
    ends_with = recorded.code if recorded.signal is None else SIGNAL_CODES + recorded.signal
    return state.get("ExitCode") in (None, ends_with)


def _out_of_memory(limit_bytes: int) -> str:
    limit = f" of {limit_bytes >> 20} MiB" if limit_bytes else ""
    return f"out of memory: the kernel ended a process at the container's limit{limit}"
