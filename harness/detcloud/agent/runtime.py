"""Starts, watches and stops the processes of an allocation.

`ContainerRuntime` is the seam; `ProcessRuntime` is its implementation without containers. It gives
a trial a scrubbed environment and a home of its own, which is tidiness and no security boundary.
The other one is in `docker_runtime`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.agent.bind_mounts import bind_mounts, make_links
from detcloud.agent.directory import read_object, write_atomically
from detcloud.agent.environment import shared_environment
from detcloud.agent.startup_hook import PASSED
from detcloud.agent.unused_settings import process_notices
from detcloud.launch.entrypoint import names_trial_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from detcloud.agent.assignment import Assignment
    from detcloud.agent.template import Template

LOCK_DESCRIPTOR = 200
LIVENESS_SECONDS = 1.0
LOG_BYTES_MAX = 256 << 20
BEGUN_SECONDS = 2.0
BEGUN_POLL_SECONDS = 0.01


class Phase(Enum):
    """How far a launch has come."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: (name, argv) stages in order, the last one being the trial itself.

    A stage `hook` may become the trial: it says so with a file, see `startup_hook`. Of the log the
    first `log_bytes_max` bytes and its end are kept. With `by_template` the one stage is TRIAL, and
    a process that has torch imported may run it. `container` is what the engine is asked for, and
    `facts` what the trial's record should say of where it runs.
    """

    stages: list[tuple[str, list[str]]]
    environment: dict[str, str] = field(repr=False)
    cwd: str
    log: str
    log_bytes_max: int = LOG_BYTES_MAX
    by_template: bool = False
    container: Mapping[str, Any] | None = field(default=None, repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """A launch's phase and, once ended, how: `stage` ended last, `lost` if nobody saw the end.

    `cause` says it in words where the runtime knows more; `not_started`: the machine could not.
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
        """User and group whom a trial's files must belong to; None: the agent's own."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Called once, before all else: only these launches of an earlier agent are wanted still.

        Never blocks; what is left of others is removed.
        """

    def prepare(self, assignment: Assignment, wanted: Callable[[], bool]) -> Launch:
        """Lay out what the launch needs and fetch what is not here, for minutes if need be.

        Raises LaunchImpossible for what the trial may not have, and anything for trouble of the
        machine. It may give up when the launch is not `wanted` any more.
        """

    def start(self, directory: Path, launch: Launch) -> None:
        """Start once. Raises OSError if nothing was started, RuntimeError if it runs already."""

    def poll(self, directory: Path) -> Status:
        """The present status, also of launches that an earlier agent made. Never blocks."""

    def kill(self, directory: Path, grace_ms: int) -> None:
        """SIGTERM now, SIGKILL after the grace; idempotent, and the shortest grace counts.

        Raises OSError where the request could not be kept; then it is to be repeated.
        """

    def remove(self, directory: Path) -> None:
        """Free what the runtime holds of an ended launch; harmless when repeated."""

    def tend(self) -> None:
        """Called about twice a second: free what is needed no more. Never blocks."""

    def close(self) -> None:
        """End what no launch needs; the launches go on."""


class ProcessRuntime:
    """One supervisor process per launch, which survives the agent."""

    def __init__(self, template: Template | None = None) -> None:
        self._template = template
        self._supervisors: dict[Path, int] = {}
        self._children: set[int] = set()
        self._seen_alive: dict[Path, float] = {}

    @property
    def owner(self) -> None:
        """Trials run as the agent's own user."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Nothing is left of others: supervisors end their processes."""

    def prepare(self, assignment: Assignment, wanted: Callable[[], bool]) -> Launch:
        """Link the bind mounts, say what is not used, and have a template ready if it may help."""
        directory = assignment.directory
        make_links(bind_mounts(assignment.config), directory.code)
        directory.write_notices(process_notices(assignment.config, cuda=assignment.cuda))
        base = shared_environment(os.environ, assignment.threads)
        plain = assignment.has_hook or assignment.cuda
        launch = Launch(
            assignment.stages(sys.executable, directory.agent),
            assignment.environment(base),
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            names_trial_class(assignment.spec.get("entrypoint", "")) and not plain,
        )
        if launch.by_template and self._template is not None:
            self._template.warm()
        return launch

    def start(self, directory: Path, launch: Launch) -> None:
        """Hand the launch, and the lock that proves life, to a new supervisor."""
        lock = _opened_lock(directory)
        try:
            if not _locked(lock):
                raise RuntimeError(f"{directory} has a supervisor already")
            write_atomically(directory / "launch.json", asdict(launch))
            supervisor = self._forked(directory, launch, lock)
        finally:
            # The supervisor's copy keeps the lock: it belongs to the open file, not to a process.
            os.close(lock)
        if supervisor is None and not _begun(directory):
            supervisor = self._spawned(directory)
        if supervisor is not None:
            self._supervisors[directory] = supervisor

    def _forked(self, directory: Path, launch: Launch, lock: int) -> int | None:
        if not launch.by_template or self._template is None:
            return None
        return self._template.fork(directory, launch.environment, launch.cwd, lock)

    def _spawned(self, directory: Path) -> int:
        lock = _opened_lock(directory)
        try:
            if not _locked(lock):
                raise RuntimeError(f"{directory} has a supervisor already")
            output = str(directory / "supervisor.log")
            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            script = str(Path(__file__).with_name("supervisor.py"))
            argv = [sys.executable, "-I", "-S", script, str(directory), str(LOCK_DESCRIPTOR)]
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, writing, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, lock, LOCK_DESCRIPTOR),
            ]
            supervisor = os.posix_spawn(sys.executable, argv, {}, file_actions=actions)
        finally:
            os.close(lock)
        self._children.add(supervisor)
        return supervisor

    def poll(self, directory: Path) -> Status:
        """Read the supervisor's records; see once a second whether it still lives."""
        self._reap()
        ended = _ended(directory)
        if ended is not None:
            return ended
        if not (directory / "launch.json").exists():
            return Status(Phase.ABSENT)
        if not self._alive(directory):
            return _ended(directory) or _lost(directory)
        process = read_object(directory / "process.json")
        stage = str(process.get("stage", "")) if process else ""
        if stage == "hook" and (directory / PASSED).exists():
            stage = "trial"
        return Status(Phase.RUNNING if stage == "trial" else Phase.STARTING, stage)

    def kill(self, directory: Path, grace_ms: int) -> None:
        """Tell the supervisor, if it lives, to end the trial; without room for the file, at once.

        Raises OSError without that room: a supervisor that is just starting was not told.
        """
        try:
            write_atomically(directory / "kill.json", {"grace_ms": grace_ms})
        finally:
            supervisor = self._supervisor_of(directory)
            if supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGTERM)

    def remove(self, directory: Path) -> None:
        """Forget a launch; its files are the caller's to delete."""
        self._seen_alive.pop(directory, None)
        self._supervisors.pop(directory, None)
        self._reap()

    def tend(self) -> None:
        """Let a template end that nobody has used for some minutes."""
        self._reap()
        if self._template is not None:
            self._template.tend()

    def close(self) -> None:
        """End the template; the trials that it began go on."""
        if self._template is not None:
            self._template.close()

    def _supervisor_of(self, directory: Path) -> int | None:
        """The one that lives and listens; its handlers come before `begun`."""
        process = read_object(directory / "process.json")
        if process is None and not (directory / "begun").exists():
            return None
        if supervisor_gone(directory):
            return None
        return int(process["supervisor"]) if process else self._supervisors.get(directory)

    def _alive(self, directory: Path) -> bool:
        now = time.monotonic()
        if now - self._seen_alive.get(directory, -LIVENESS_SECONDS) < LIVENESS_SECONDS:
            return True
        if supervisor_gone(directory):
            return False
        self._seen_alive[directory] = now
        return True

    def _reap(self) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)


def supervisor_gone(directory: Path) -> bool:
    """Whether nobody holds the launch's lock."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _locked(lock)
    finally:
        os.close(lock)


def _begun(directory: Path) -> bool:
    """Whether a supervisor that did not answer supervises, or did. Until that is sure, it waits.

    Called when whoever could have become one has ended or will not: the lock tells the rest.
    """
    give_up_at = time.monotonic() + BEGUN_SECONDS
    while not (directory / "begun").exists():
        if supervisor_gone(directory):
            # One may have come and gone between the two looks.
            return (directory / "begun").exists()
        if time.monotonic() > give_up_at:
            return True
        time.sleep(BEGUN_POLL_SECONDS)
    return True


def _opened_lock(directory: Path) -> int:
    return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ended(directory: Path) -> Status | None:
    ended = read_object(directory / "exit.json")
    if ended is None:
        return None
    return Status(
        Phase.ENDED, str(ended["stage"]), ended["code"], ended["signal"], bool(ended["killed"])
    )


def _lost(directory: Path) -> Status:
    """The supervisor died with no word (a reboot, or somebody killed it): end what it left."""
    process = read_object(directory / "process.json")
    for pid in _session_members(process) if process else []:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return Status(Phase.ENDED, lost=True)


def _session_members(process: dict[str, object]) -> list[int]:
    """Processes of the trial's session that started no earlier than its leader."""
    session, since = str(process.get("pid")), int(str(process.get("start_time") or 0))
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
            if fields[3] == session and int(fields[19]) >= since > 0:
                members.append(int(status.parent.name))
    return members
