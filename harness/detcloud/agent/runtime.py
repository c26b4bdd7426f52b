"""The interface of a container runtime, which starts, watches and stops a trial's processes.

`agent/processes` implements it without containers, `agent/docker` with Docker's engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from detcloud.agent.assignment.assignment import Assignment

LOG_BYTES_MAX = 256 << 20


class Phase(Enum):
    """The phase of a launch."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Launch:
    """The processes to run: (name, argv) stages in order, the last one being the trial itself.

    A stage `hook` may become the trial: it says so with a file, see `startup_hook`. Of the log the
    first `log_bytes_max` bytes and its end are kept. With `can_fork` the only stage is the trial,
    and the fork server may run it. `container` is the body of the engine's request, and `facts` are
    fields for the trial's record of its environment.
    """

    stages: list[tuple[str, list[str]]]
    environment: dict[str, str] = field(repr=False)
    cwd: str
    log: str
    log_bytes_max: int = LOG_BYTES_MAX
    can_fork: bool = False
    container: Mapping[str, Any] | None = field(default=None, repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """A launch's phase and, once ended, how: `stage` ended last, `lost` if nobody saw the end.

    `cause` is a sentence, where the runtime knows more; `not_started`: the machine could not.
    """

    phase: Phase
    stage: str = ""
    code: int | None = None
    signal: int | None = None
    killed: bool = False
    lost: bool = False
    not_started: bool = False
    cause: str = ""


class ContainerRuntime(Protocol):
    """Runs launches, each identified by the directory that holds the runtime's records of it."""

    @property
    def owner(self) -> tuple[int, int] | None:
        """User and group to which a trial's files must belong; None: the agent's own."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Take over these launches of an earlier agent, and clean up all other launches.

        Called once, before anything else. Never blocks.
        """

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Lay out what the launch needs and fetch what is not here, for minutes if need be.

        Raises LaunchImpossible for what the trial may not have, and anything for trouble of the
        machine. It may give up when the launch is not needed any more.
        """

    def start(self, directory: Path, launch: Launch) -> None:
        """Start once. Raises OSError if nothing was started, RuntimeError if it runs already."""

    def poll(self, directory: Path) -> Status:
        """The present status, also of launches that an earlier agent made. Never blocks."""

    def kill(self, directory: Path, grace_ms: int) -> None:
        """SIGTERM now, SIGKILL after the grace; idempotent, and the shortest grace counts.

        Raises OSError where the request could not be written down; then it is to be repeated.
        """

    def remove(self, directory: Path) -> None:
        """Free what the runtime holds of an ended launch; harmless when repeated."""

    def release_idle_resources(self) -> None:
        """Free what is no longer needed; called about twice a second. Never blocks."""

    def close(self) -> None:
        """End the runtime's own processes and threads; the launches go on."""
