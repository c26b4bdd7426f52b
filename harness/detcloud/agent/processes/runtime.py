"""The runtime that starts, watches and stops trials as processes of this machine.

A trial gets a scrubbed environment and a home of its own, which is tidiness and no security
boundary.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.assignment.bind_mounts import bind_mounts, make_links
from detcloud.agent.assignment.data_layer import data_layer_variables
from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.assignment.startup_hook import PASSED_FILE
from detcloud.agent.assignment.unused_settings import process_notices
from detcloud.agent.runtime import Launch, Phase, Status
from detcloud.launch.launchers import find_launcher
from detcloud.shared.files import read_untrusted_json_object, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.assignment.assignment import Assignment
    from detcloud.agent.processes.fork_server import ForkServer

# Run by its path, without importing this package (docs/benchmarks.md, `starts`).
SUPERVISOR = Path(__file__).parents[2] / "launch" / "supervisor.py"
LOCK_DESCRIPTOR = 200
LIVENESS_SECONDS = 1.0
BEGIN_SECONDS_MAX = 2.0
BEGIN_POLL_SECONDS = 0.01
STAGE_CHARACTERS_MAX = 16


class ProcessRuntime:
    """Runs each launch under a supervisor process of its own, which survives the agent."""

    def __init__(
        self, fork_server: ForkServer | None = None, data_layer: Path | None = None
    ) -> None:
        """`data_layer` is the folder of cached data sets whose configuration names none."""
        self._fork_server, self._data_layer = fork_server, data_layer
        self._supervisors: dict[Path, int] = {}
        self._children: set[int] = set()
        # Children that a signal ended: what lies where they record an end is not theirs.
        self._killed: set[int] = set()
        self._seen_alive: dict[Path, float] = {}

    @property
    def owner(self) -> None:
        """None: trials run as the agent's own user."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Do nothing: of other launches nothing is left, since supervisors end their processes."""

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Link the bind mounts, log unused settings, and start the fork server if it may help."""
        directory = assignment.directory
        make_links(bind_mounts(assignment.config), directory.code)
        directory.write_notices(process_notices(assignment.config, cuda=assignment.uses_cuda))
        base = shared_environment(os.environ, assignment.threads)
        several = len(assignment.slots) > 1 or int(assignment.spec.get("nodes", 1)) > 1
        plain = assignment.has_hook or assignment.uses_cuda or several
        launch = Launch(
            assignment.stages(sys.executable, directory.agent),
            assignment.environment(base, data_layer_variables(assignment.config, self._data_layer)),
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            find_launcher(assignment.spec.get("entrypoint", "")).can_fork and not plain,
        )
        if launch.can_fork and self._fork_server is not None:
            self._fork_server.warm_up()
        return launch

    def start(self, directory: Path, launch: Launch) -> None:
        """Hand the launch, and the lock that proves life, to a new supervisor."""
        lock = _take_lock(directory)
        try:
            write_atomically(directory / "launch.json", _launch_record(launch))
            supervisor = self._fork_supervisor(directory, launch, lock)
        finally:
            # The supervisor's copy keeps the lock: it belongs to the open file, not to a process.
            os.close(lock)
        if supervisor is None and not _has_supervisor_begun(directory):
            supervisor = self._spawn_supervisor(directory)
        if supervisor is not None:
            self._supervisors[directory] = supervisor

    def _fork_supervisor(self, directory: Path, launch: Launch, lock: int) -> int | None:
        if not launch.can_fork or self._fork_server is None:
            return None
        return self._fork_server.fork(directory, launch.environment, launch.cwd, lock)

    def _spawn_supervisor(self, directory: Path) -> int:
        lock = _take_lock(directory)
        try:
            output = str(directory / "supervisor.log")
            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            argv = [
                sys.executable,
                "-I",
                "-S",
                str(SUPERVISOR),
                str(directory),
                str(LOCK_DESCRIPTOR),
            ]
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
        exit_status = self._recorded_exit(directory)
        if exit_status is not None:
            return exit_status
        if not (directory / "launch.json").exists():
            return self._poll_without_records(directory)
        if not self._is_alive(directory):
            return self._recorded_exit(directory) or _end_lost_launch(directory)
        process = read_untrusted_json_object(directory / "process.json")
        stage = str(process.get("stage", "")) if process else ""
        if stage == "hook" and (directory / PASSED_FILE).exists():
            stage = "trial"
        return Status(Phase.RUNNING if stage == "trial" else Phase.STARTING, stage)

    def _recorded_exit(self, directory: Path) -> Status | None:
        """The end that the supervisor recorded, of whose launch no process is left then.

        A trial can write such a record too, and end its supervisor.
        """
        status = _read_exit(directory)
        if status is None or not is_supervisor_gone(directory):
            return None
        if self._supervisors.get(directory) in self._killed:
            return None
        _end_processes(directory)
        return status

    def _poll_without_records(self, directory: Path) -> Status:
        """The status of a launch without its folder: it was never begun, or its trial has removed
        it, which ends a trial at once.
        """
        supervisor = self._supervisors.get(directory)
        if supervisor not in self._children:
            return Status(Phase.ABSENT)
        os.kill(supervisor, signal.SIGTERM)
        return Status(Phase.RUNNING, "trial")

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
        self._killed.discard(self._supervisors.pop(directory, 0))
        self._reap()

    def release_idle_resources(self) -> None:
        """End a fork server that nobody has used for some minutes."""
        self._reap()
        if self._fork_server is not None:
            self._fork_server.close_if_idle()

    def close(self) -> None:
        """End the fork server; the trials that it began go on."""
        if self._fork_server is not None:
            self._fork_server.close()

    def _supervisor_of(self, directory: Path) -> int | None:
        """The id of the supervisor if it lives and hears signals, which it does from `begun` on."""
        process = read_untrusted_json_object(directory / "process.json")
        if process is None and not (directory / "begun").exists():
            return None
        if is_supervisor_gone(directory):
            return None
        # A trial can write the record too: it counts where this agent began nothing itself.
        return self._supervisors.get(directory) or _process_id(process or {}, "supervisor")

    def _is_alive(self, directory: Path) -> bool:
        now = time.monotonic()
        if now - self._seen_alive.get(directory, -LIVENESS_SECONDS) < LIVENESS_SECONDS:
            return True
        if is_supervisor_gone(directory):
            return False
        self._seen_alive[directory] = now
        return True

    def _reap(self) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                if os.WIFSIGNALED(status):
                    self._killed.add(pid)
            self._children.discard(pid)


def is_supervisor_gone(directory: Path) -> bool:
    """Whether nobody holds the launch's lock."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return _try_to_lock(lock)
    finally:
        os.close(lock)


def _has_supervisor_begun(directory: Path) -> bool:
    """Whether a supervisor started that the fork server did not report; waits until that is known.

    Called when no further process can become the supervisor, so that the lock decides.
    """
    give_up_at = time.monotonic() + BEGIN_SECONDS_MAX
    while not (directory / "begun").exists():
        if is_supervisor_gone(directory):
            # One may have come and gone between the two looks.
            return (directory / "begun").exists()
        if time.monotonic() > give_up_at:
            return True
        time.sleep(BEGIN_POLL_SECONDS)
    return True


def _launch_record(launch: Launch) -> dict[str, object]:
    """The launch as the supervisor reads it."""
    record = asdict(launch)
    record["by_template"] = record.pop("can_fork")
    return record


def _take_lock(directory: Path) -> int:
    """Open the lock of a launch and take it; RuntimeError if a supervisor has it.

    Whatever else this agent starts holds a copy of each of its descriptors until it executes its
    program, and with it the lock that this agent has just given back: that is waited for.
    """
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + BEGIN_SECONDS_MAX
    while not _try_to_lock(lock):
        if time.monotonic() > give_up_at:
            os.close(lock)
            raise RuntimeError(f"{directory} already has a supervisor")
        time.sleep(BEGIN_POLL_SECONDS)
    return lock


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_exit(directory: Path) -> Status | None:
    record = read_untrusted_json_object(directory / "exit.json")
    if record is None:
        return None
    code, number = record.get("code"), record.get("signal")
    if not all(value is None or isinstance(value, int) for value in (code, number)):
        return None
    stage = str(record.get("stage", ""))[:STAGE_CHARACTERS_MAX]
    return Status(Phase.ENDED, stage, code, number, bool(record.get("killed")))


def _end_lost_launch(directory: Path) -> Status:
    """End what a supervisor left that died without a record: it was killed, or a reboot."""
    _end_processes(directory)
    return Status(Phase.ENDED, lost=True)


def _end_processes(directory: Path) -> None:
    """Kill the remaining processes of a launch whose supervisor was killed."""
    process = read_untrusted_json_object(directory / "process.json") or {}
    for pid in _launch_processes(process, directory.parent / "home"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _process_id(process: dict[str, object], name: str) -> int | None:
    """A process that a record names; None for what is no other process's id."""
    found = process.get(name)
    is_other = isinstance(found, int) and found > 1 and found != os.getpid()
    return found if is_other and isinstance(found, int) else None


def _launch_processes(process: dict[str, object], home: Path) -> list[int]:
    """The processes of the trial's session that started no earlier than its leader, and those that
    have the trial's `home` for their own.
    """
    start_time = str(process.get("start_time"))
    session = str(_process_id(process, "pid"))
    since = int(start_time) if start_time.isdecimal() and start_time.isascii() else 0
    variable = b"\0HOME=" + os.fsencode(home) + b"\0"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            is_member = fields[3] == session and int(fields[19]) >= since > 0
            if is_member or variable in b"\0" + (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
