"""The exit status of a container: the engine says that it ended, the supervisor's records how.

The trial can write the records, so nothing but the way it ended is taken from them, and that only
if the container's exit code, which is the supervisor's, says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detcloud.agent.docker.engine import EngineError
from detcloud.agent.runtime import Phase, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES = ("hook", "trial")
SIGNALS_MAX = 64
# What a supervisor adds to the signal that ended the trial, as shells do.
SIGNAL_CODES = 128
# Exit codes of a container whose engine was stopped or whose machine went down.
ENDED_FROM_OUTSIDE = (137, 143)


@dataclass(frozen=True, slots=True)
class EndedContainer:
    """A container that runs no more.

    `state` is the engine's, `record` the supervisor's last one if any. `begun`: the supervisor had
    started; `killed`: the agent requested the end; `memory_bytes` is the limit, 0 for none.
    """

    state: Mapping[str, Any]
    record: Mapping[str, Any] | None
    begun: bool
    killed: bool
    memory_bytes: int = 0


def exit_status(ended: EndedContainer, printed: str = "") -> Status:
    """The status of an ended container; `printed` is its output before its log was opened."""
    cause = _out_of_memory(ended.memory_bytes) if ended.state.get("OOMKilled") else ""
    recorded = _recorded_status(ended.record)
    if recorded is not None and not _agrees(recorded, ended.state):
        recorded = None
    if recorded is not None and recorded.killed and not ended.killed:
        # The engine or the machine was stopped, or somebody stopped the container.
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
    """The status of a container that the engine refused to make or start.

    The trial's request was wrong (400), or the machine could not.
    """
    cause = f"the container could not be started: {error.message}"
    return Status(Phase.ENDED, cause=cause, not_started=error.status != 400)


def engine_unavailable_status(trouble: str) -> Status:
    """The status of a container that was not started because its engine was not available."""
    cause = f"the container could not be started: {trouble}"
    return Status(Phase.ENDED, cause=cause, not_started=True)


def _recorded_status(record: Mapping[str, Any] | None) -> Status | None:
    """The status in the supervisor's record, None for one that it would not have written."""
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
    """Whether a supervisor that recorded this ends with the container's exit code; so it seems of a
    container that the engine no longer has.
    """
    ends_with = recorded.code if recorded.signal is None else SIGNAL_CODES + recorded.signal
    return state.get("ExitCode") in (None, ends_with)


def _out_of_memory(limit_bytes: int) -> str:
    limit = f" of {limit_bytes >> 20} MiB" if limit_bytes else ""
    return f"out of memory: the kernel ended a process at the container's limit{limit}"
