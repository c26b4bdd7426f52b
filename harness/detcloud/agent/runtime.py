"""The interface of a container runtime, which starts, watches and stops a trial's processes.

`agent/processes` implements the interface without containers, `agent/docker` with Docker's engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.shared.files import read_untrusted_json_object

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from detcloud.agent.assignment.agent_user import MachineUser
    from detcloud.agent.assignment.assignment import Assignment

LoginIssuer = Callable[[str], Mapping[str, str] | None]
"""Fetches a login of the cluster for an image: the fields of `registry_auth`, or None if the pull
needs no login. Raises OSError if the cluster does not answer, and ApiError after a refusal.
"""
LOG_BYTES_MAX = 256 << 20
STOP_FILE = "stop.json"
"""The supervisor's record of a stop that the engine or the system requested, not the agent."""


class Phase(Enum):
    """The phase of a launch."""

    ABSENT = "absent"
    """The runtime has no record of a start."""
    STARTING = "starting"
    """The stages before the trial run, or nothing runs yet."""
    RUNNING = "running"
    """The trial's own stage runs."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Launch:
    """The processes to run for an allocation, prepared by a runtime."""

    stages: list[tuple[str, list[str]]]
    """The name and command line of each stage, in order. The last stage is the trial.

    A stage `hook` may become the trial, and then creates a file (see `startup_hook`).
    """
    environment: dict[str, str] = field(repr=False)
    """The environment variables of all stages."""
    cwd: str
    log: str
    """The path of the log of all stages."""
    log_bytes_max: int = LOG_BYTES_MAX
    """The size limit of the log. Beyond the limit, only the end of the output is kept."""
    can_fork: bool = False
    """Whether the fork server may run the trial. The trial is then the only stage."""
    container: Mapping[str, Any] | None = field(default=None, repr=False)
    """The body of the engine's request that creates the container. None without containers."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Fields for the trial's `environment` record."""
    user: MachineUser | None = None
    """The user that the stages run as. None for the runtime's default user."""
    passed_folder: str = ""
    """The folder in which the startup hook's shell creates PASSED_FILE. "": the records."""


@dataclass(frozen=True, slots=True)
class Status:
    """A launch's phase and, after the end, the way in which the launch ended."""

    phase: Phase
    stage: str = ""
    """The stage that runs or ended last. "" if no stage is known to have begun."""
    code: int | None = None
    """The exit code of the last stage. None before the end or after a signal."""
    signal: int | None = None
    """The signal that ended the last stage, or None."""
    killed: bool = False
    """Whether the launch ended after a request to stop."""
    lost: bool = False
    """Whether the launch ended without a record of its end."""
    not_started: bool = False
    """Whether the machine, not the trial's request, made the start impossible."""
    cause: str = ""
    """The cause of the end as a sentence. "" if the runtime has no better text than the codes."""
    stop_deadline_ms: int | None = None
    """The time in epoch milliseconds by which a running launch must end.

    None unless the engine or the system, not the agent, has requested a stop.
    """


class ContainerRuntime(Protocol):
    """A runner of launches. The directory with a launch's records identifies the launch."""

    @property
    def owner(self) -> tuple[int, int] | None:
        """The user and group ids that must own a trial's files. None for the agent's own user."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Take over the launches of an earlier agent in `directories`.

        Clean up all other launches of that agent. Called once, before all other methods. Never
        block.
        """

    def expect_image(self, image: str, issue_login: LoginIssuer | None = None) -> None:
        """Prepare for a trial that probably runs in this container image. Never block.

        Called after the enrolment of a new machine. The next trial may run in another image.
        `issue_login` fetches the login of the pull, or None for a pull without a login.
        """

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Write the files of a trial, fetch missing parts like an image, and return the launch.

        May block for minutes. May raise any exception once `is_needed` returns False. Raise
        LaunchImpossible if the trial's request cannot or must not be met. Raise any other exception
        for a problem of the machine.
        """

    def start(self, directory: Path, launch: Launch) -> None:
        """Start a launch, and store its records in `directory`.

        Raise OSError if nothing was started. Raise RuntimeError if a launch of the directory runs
        already.
        """

    def poll(self, directory: Path) -> Status:
        """Return the current status of a started or adopted launch. Never block.

        The phase is ABSENT if the runtime has no launch with this directory.
        """

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        """Ask the trial to stop, and send SIGKILL after `grace_ms` milliseconds.

        The trial's directives already contain the stop. A process that reads its directives gets
        SIGTERM only late in the grace. Another program gets SIGTERM at once. With `saves`, a
        program that neither reads directives nor catches SIGTERM may run until the end of the
        grace. After repeated calls, the shortest grace counts. Raise OSError if the request could
        not be stored; the caller must then repeat the call.
        """

    def processes(self, directory: Path) -> list[int]:
        """Return the ids of the launch's processes on this machine.

        Return an empty list after the end, for an unknown directory, and on systems without /proc.
        """

    def spawn(self, directory: Path, module: str) -> socket.socket:
        """Start a module of this package in a running launch. Return a socket of input and output.

        The process has the user, the variables and the working directory of the trial, and ends at
        the latest with the launch. Closing the socket ends the input of the process. Return at
        once, before the process may have been started; the socket ends if the start fails. Raise
        OSError if the start fails at once.
        """

    def remove(self, directory: Path) -> None:
        """Free the runtime's resources of an ended launch, for example a container.

        Do nothing for an unknown directory. The directory's files stay.
        """

    def release_idle_resources(self) -> None:
        """Free unused resources of the runtime. Called about twice a second. Never block."""

    def close(self) -> None:
        """End the runtime's own processes and threads. The launches continue."""


def read_stop_deadline(records: Path) -> int | None:
    """Return the deadline in the supervisor's record STOP_FILE, in epoch milliseconds.

    Return None if the folder `records` has no such file or the file has no positive deadline.
    """
    path = records / STOP_FILE
    # Launches are polled often, and most have no such record.
    if not os.path.lexists(path):
        return None
    deadline_ms = (read_untrusted_json_object(path) or {}).get("deadline_ms")
    return deadline_ms if type(deadline_ms) is int and deadline_ms > 0 else None
