"""The runtime that starts, watches and stops trials as processes of this machine.

Each trial gets a reduced environment and a separate home. Neither is a security boundary. A trial
with an agent user runs as this user of the machine, if the agent runs as root (decision 0167).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.start_times import PACKAGES
from detcloud.agent.assignment.bind_mounts import bind_mounts, make_links
from detcloud.agent.assignment.data_layer import data_layer_variables
from detcloud.agent.assignment.environment import shared_environment, user_variables
from detcloud.agent.assignment.kernel_cache import kernel_folder, kernel_variables
from detcloud.agent.assignment.startup_hook import PASSED_FILE
from detcloud.agent.assignment.unused_settings import process_notices
from detcloud.agent.processes.overlay import lay_out_overlay
from detcloud.agent.processes.user_access import (
    data_layer_folder,
    find_launch_user,
    give_files,
)
from detcloud.agent.runtime import Launch, Phase, Status, read_stop_deadline
from detcloud.launch.launchers import find_launcher
from detcloud.shared.files import (
    read_json_object,
    read_untrusted_json_object,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from detcloud.agent.assignment.assignment import Assignment
    from detcloud.agent.processes.fork_server import ForkServer
    from detcloud.agent.runtime import LoginIssuer

# Run by its path, without importing this package (docs/benchmarks.md, `starts`).
SUPERVISOR = Path(__file__).parents[2] / "launch" / "supervisor.py"
LOCK_DESCRIPTOR = 200
LIVENESS_SECONDS = 1.0
BEGIN_SECONDS_MAX = 2.0
BEGIN_POLL_SECONDS = 0.01
# The grace after a SIGTERM at the system's shutdown, which sends SIGKILL later.
UNASKED_GRACE_SECONDS = 15.0
STAGE_CHARACTERS_MAX = 16
# The umask of trials, which the supervisor also sets.
TRIAL_UMASK = 0o022


class ProcessRuntime:
    """The runtime without containers. A supervisor process runs each launch and survives the agent.

    See ContainerRuntime for the contract of the methods.
    """

    def __init__(
        self, fork_server: ForkServer | None = None, data_layer: Path | None = None
    ) -> None:
        """Create a runtime. Nothing is started yet.

        `fork_server` forks suitable trials; None starts all trials plainly. `data_layer` is the
        folder of cached data sets for configurations without a folder.
        """
        self._fork_server, self._data_layer = fork_server, data_layer
        self._supervisors: dict[Path, int] = {}
        self._children: set[int] = set()
        # The supervisors that a signal ended. Such a supervisor has not written an exit record.
        self._killed: set[int] = set()
        self._seen_alive: dict[Path, float] = {}
        # The processes of `spawn` that were not reaped yet.
        self._spawned: set[int] = set()

    @property
    def owner(self) -> None:
        """None: trials run as the agent's own user."""

    def adopt(self, directories: Sequence[Path]) -> None:
        """Do nothing, because the supervisor of an ended launch has ended all processes."""

    def expect_image(self, image: str, issue_login: LoginIssuer | None = None) -> None:
        """Do nothing, because trials run without images."""

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Prepare a launch: link bind mounts, lay out the Python overlay and the kernel folder.

        Fetch or reuse layers of packages. Write notices about unused settings to the trial's log.
        If the fork server can run the trial, start the fork server, for up to 30 s. `is_needed` is
        ignored. A trial of another user gets its files, and a check of its access. Raise
        MountImpossible for an impossible mount, AgentUserUnavailable for a user without access,
        OSError for an unwritable file.
        """
        directory = assignment.directory
        user = find_launch_user(assignment)
        make_links(bind_mounts(assignment.config), directory.code)
        notices = process_notices(assignment.config, device=assignment.device)
        directory.write_notices([*notices, *assignment.slot_notices()])
        base = shared_environment(os.environ, assignment.threads)
        with assignment.start_times.measure(PACKAGES):
            python = lay_out_overlay(assignment, base["PATH"], is_own_user=user is None)
        base |= {**python.variables, **kernel_variables(kernel_folder(assignment))}
        base |= user_variables(user)
        several = len(assignment.slots) > 1 or int(assignment.spec.get("nodes", 1)) > 1
        plain = assignment.has_hook or assignment.packages or assignment.uses_gpus or several
        plain = plain or user is not None
        passed = directory.agent if user is None else directory.home
        launch = Launch(
            assignment.stages(
                python.executable,
                passed,
                install=python.install,
                after_hook=python.after_hook,
            ),
            assignment.environment(
                base,
                data_layer_variables(
                    assignment.config, data_layer_folder(assignment, user, self._data_layer)
                ),
            ),
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            find_launcher(assignment.spec.get("entrypoint", "")).can_fork and not plain,
            user=user,
            facts={} if user is None else {"agent_user": user.label},
            passed_folder="" if user is None else str(passed),
        )
        if user is not None:
            give_files(assignment, user)
        if launch.can_fork and self._fork_server is not None:
            self._fork_server.warm_up()
        return launch

    def start(self, directory: Path, launch: Launch) -> None:
        """Start a supervisor for the launch, forked by the fork server if possible.

        Write launch.json. The supervisor holds the lock of `directory` while it lives. Raise
        RuntimeError if another supervisor holds the lock, OSError if nothing was started.
        """
        lock = _take_lock(directory)
        try:
            write_atomically(directory / "launch.json", _launch_record(launch))
            supervisor = self._fork_supervisor(directory, launch, lock)
        finally:
            # The lock belongs to the open file, so the supervisor's descriptor keeps the lock.
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
        """Return the status from the supervisor's records.

        Check once a second whether the supervisor lives. If the supervisor died without a record,
        kill the remaining processes; the launch is lost. If the trial removed the records, ask the
        supervisor to end the trial.
        """
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
        if stage == "hook" and _has_hook_passed(directory):
            stage = "trial"
        phase = Phase.RUNNING if stage == "trial" else Phase.STARTING
        return Status(phase, stage, stop_deadline_ms=read_stop_deadline(directory))

    def _recorded_exit(self, directory: Path) -> Status | None:
        """Return the end that the supervisor recorded, after killing remaining processes.

        Return None without a valid record, while the supervisor lives, or if a signal ended the
        supervisor. In the last case, the trial may have written the record.
        """
        status = _read_exit(directory)
        if status is None or not is_supervisor_gone(directory):
            return None
        if self._supervisors.get(directory) in self._killed:
            return None
        _end_processes(directory)
        return status

    def _poll_without_records(self, directory: Path) -> Status:
        """Return the status of a launch without launch.json.

        Return ABSENT unless this agent started a supervisor that still runs. In that case, the
        trial has removed the file: send SIGTERM to the supervisor, and return RUNNING.
        """
        supervisor = self._supervisors.get(directory)
        if supervisor not in self._children:
            return Status(Phase.ABSENT)
        os.kill(supervisor, signal.SIGTERM)
        return Status(Phase.RUNNING, "trial")

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        """Write the request to kill.json, and send SIGTERM to a living supervisor.

        Return at once. The supervisor then stops the trial, and sends SIGKILL after the grace. A
        process that reads its directives gets SIGTERM only late in the grace, another program at
        once. With `saves`, a program that neither reads directives nor catches SIGTERM may run
        until the end of the grace. A starting supervisor reads the file later.

        Raise OSError if the file cannot be written. A living supervisor gets the signal even then,
        and stops the trial with an earlier request's grace or the launch's default grace.
        """
        try:
            write_atomically(directory / "kill.json", {"grace_ms": grace_ms, "saves": saves})
        finally:
            supervisor = self._supervisor_of(directory)
            if supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGTERM)

    def processes(self, directory: Path) -> list[int]:
        """Return the ids of the processes in the trial's session or with the trial's home."""
        process = read_untrusted_json_object(directory / "process.json") or {}
        if is_supervisor_gone(directory):
            return []
        return _launch_processes(process, directory.parent / "home")

    def spawn(self, directory: Path, module: str) -> socket.socket:
        """Start a module in a running launch, and return a socket with the input and output.

        The home folder in the process's variables marks the process as a part of the launch, so the
        process ends with the launch. Raise OSError if the process cannot be started.
        """
        launch = read_json_object(directory / "launch.json")
        if launch is None:
            raise FileNotFoundError(f"{directory} has no launch")
        served, program = socket.socketpair()
        try:
            with program, (directory / "spawned.log").open("ab") as log:
                process = subprocess.Popen(
                    self._module_command(directory, launch, module),
                    stdin=program.fileno(),
                    stdout=program.fileno(),
                    stderr=log,
                    env=launch["environment"],
                    cwd=launch["cwd"],
                    start_new_session=True,
                    **_user_options(launch.get("user")),
                )
        except BaseException:
            served.close()
            raise
        # Without this, Popen would also wait for the process, which `_reap` does by the id.
        process.returncode = 0
        self._spawned.add(process.pid)
        return served

    def _module_command(
        self, directory: Path, launch: Mapping[str, Any], module: str
    ) -> Sequence[str]:
        """Return the command that runs a module in a launch with the record `launch`."""
        return [sys.executable, "-P", "-m", module]

    def remove(self, directory: Path) -> None:
        """Delete the runtime's state of a launch, and reap ended supervisors. The files stay."""
        self._seen_alive.pop(directory, None)
        self._killed.discard(self._supervisors.pop(directory, 0))
        self._reap()

    def release_idle_resources(self) -> None:
        """Reap ended supervisors, and end a fork server that was unused for some minutes."""
        self._reap()
        if self._fork_server is not None:
            self._fork_server.close_if_idle()

    def close(self) -> None:
        """End the fork server. The trials that it forked continue."""
        if self._fork_server is not None:
            self._fork_server.close()

    def _supervisor_of(self, directory: Path) -> int | None:
        """Return the process id of the launch's supervisor.

        Return None if the supervisor has ended or does not handle signals yet. The supervisor
        handles signals once the file `begun` exists.
        """
        process = read_untrusted_json_object(directory / "process.json")
        if process is None and not (directory / "begun").exists():
            return None
        if is_supervisor_gone(directory):
            return None
        # A trial can write the record too, so an id that this agent knows takes precedence.
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
        for pid in list(self._spawned):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._spawned.discard(pid)
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                if os.WIFSIGNALED(status):
                    self._killed.add(pid)
            self._children.discard(pid)


def _has_hook_passed(directory: Path) -> bool:
    """Whether the startup hook has passed. The hook of another user records this in its home."""
    folders = (directory, directory.parent / "home")
    return any(os.path.lexists(folder / PASSED_FILE) for folder in folders)


def _user_options(user: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of Popen for a process of the user in a launch. Empty for None."""
    if user is None:
        return {}
    ids = {"user": user["uid"], "group": user["gid"], "extra_groups": user["groups"]}
    return {**ids, "umask": TRIAL_UMASK}


def is_supervisor_gone(directory: Path) -> bool:
    """Whether no process holds the launch's lock. True if the lock file cannot be opened."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return _try_to_lock(lock)
    finally:
        os.close(lock)


def _has_supervisor_begun(directory: Path) -> bool:
    """Whether the fork server started a supervisor without reporting the process.

    Wait until this is known, at most BEGIN_SECONDS_MAX; then return True. Called when no further
    process can become the supervisor, so that the lock decides.
    """
    give_up_at = time.monotonic() + BEGIN_SECONDS_MAX
    while not (directory / "begun").exists():
        if is_supervisor_gone(directory):
            # A supervisor may have begun and ended between the two checks.
            return (directory / "begun").exists()
        if time.monotonic() > give_up_at:
            return True
        time.sleep(BEGIN_POLL_SECONDS)
    return True


def _launch_record(launch: Launch) -> dict[str, object]:
    """Return the content of launch.json, which the supervisor reads."""
    record = asdict(launch)
    record["by_template"] = record.pop("can_fork")
    record["unasked_grace_seconds"] = UNASKED_GRACE_SECONDS
    return record


def _take_lock(directory: Path) -> int:
    """Open or create the lock file of a launch, and take the lock.

    Return the descriptor, which holds the lock until it is closed. Wait up to BEGIN_SECONDS_MAX for
    the lock, because new child processes of this agent hold copies of its descriptors until they
    execute a program. Raise RuntimeError if a supervisor holds the lock.
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
    """Kill the processes of a supervisor that died without a record, and return a lost status."""
    _end_processes(directory)
    return Status(Phase.ENDED, lost=True)


def _end_processes(directory: Path) -> None:
    """Send SIGKILL to all remaining processes of a launch. Ignore ended and foreign processes."""
    process = read_untrusted_json_object(directory / "process.json") or {}
    for pid in _launch_processes(process, directory.parent / "home"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _process_id(process: dict[str, object], name: str) -> int | None:
    """Return the process id in a field of a record.

    Return None if the field is no integer above 1 or is the id of this process.
    """
    found = process.get(name)
    is_other = isinstance(found, int) and found > 1 and found != os.getpid()
    return found if is_other and isinstance(found, int) else None


def _launch_processes(process: dict[str, object], home: Path) -> list[int]:
    """Return the ids of all processes of a launch, as /proc shows them.

    These are processes in the leader's session that started no earlier than the leader, and
    processes with the trial's `home` as HOME. `process` is the record process.json. Return an empty
    list on systems without /proc.
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
