"""How a container ended: the engine says that it has, the supervisor's records how.

The records lie where the trial can write, so they are believed in nothing but the way it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detcloud.agent.docker_api import EngineRefused
from detcloud.agent.runtime import Phase, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES = ("hook", "trial")
SIGNALS_MAX = 64
# What is left of a container whose engine was stopped or whose machine went down.
ENDED_FROM_OUTSIDE = (137, 143)


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that runs no more: the engine's state of it, the supervisor's last record if it
    left one, whether it had begun, whether the agent asked for the end, and the memory limit.
    """

    state: Mapping[str, Any]
    record: Mapping[str, Any] | None
    begun: bool
    killed: bool
    memory_bytes: int = 0


def ended_status(ended: Ended, printed: str = "") -> Status:
    """How it ended; `printed` is what it said before its log was opened."""
    cause = _out_of_memory(ended.memory_bytes) if ended.state.get("OOMKilled") else ""
    told = _told(ended.record)
    if told is not None and told.killed and not ended.killed:
        # The engine or the machine was stopped, or somebody stopped the container.
        return Status(Phase.ENDED, lost=True)
    if told is not None:
        return replace(told, cause=cause if told.code != 0 else "")
    code = int(ended.state.get("ExitCode") or 0)
    if ended.killed:
        return Status(Phase.ENDED, code=code, killed=True)
    if cause:
        return Status(Phase.ENDED, "trial", code, cause=cause)
    if ended.begun or code in ENDED_FROM_OUTSIDE:
        return Status(Phase.ENDED, lost=True)
    said = f", and said: {printed.strip()}" if printed.strip() else ""
    cause = (
        f"the container ended with exit code {code} before the trial began{said}; its image must "
        "have Python 3.11 or newer as python3"
    )
    return Status(Phase.ENDED, code=code, cause=cause)


def refused_status(error: EngineRefused) -> Status:
    """A container that the engine would not make or start: what the trial asked for cannot be, or
    the machine could not.
    """
    cause = f"the container could not be started: {error.message}"
    return Status(Phase.ENDED, cause=cause, not_started=error.status != 400)


def away_status(trouble: str) -> Status:
    """A container that was not started because there was no engine to ask for it."""
    cause = f"the container could not be started: {trouble}"
    return Status(Phase.ENDED, cause=cause, not_started=True)


def _told(record: Mapping[str, Any] | None) -> Status | None:
    """The supervisor's record, None for what it would not have written."""
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


def _out_of_memory(limit_bytes: int) -> str:
    limit = f" of {limit_bytes >> 20} MiB" if limit_bytes else ""
    return f"out of memory: the kernel ended a process at the container's limit{limit}"
