"""A trial's supervisor, `python -I -S supervisor.py FOLDER [LOCK]`: runs its processes.

It stands between agent and trial so that an agent which dies loses neither the trial nor its exit
status. Every trial has one, so it is run by its path, imports nothing of this package and as little
as it can of the standard library (docs/benchmarks.md, `starts`: the time to the first line, the
memory of a trial).

In FOLDER it reads launch.json, makes the empty file `begun` before anything runs, writes
process.json when a stage starts, reads kill.json at SIGTERM and writes exit.json when no process is
left. LOCK is a descriptor with an exclusive flock, held for as long as the supervisor lives: a
process that can take the lock knows that the supervisor has ended. A container has none: there the
supervisor is the first process, whose end is the container's. A record that finds no room on the
disk is written when there is some.

What the trial prints passes through a pipe into its log, so that a full disk or a limit on the log
stops no trial. `detcloud.launch.fork_server` runs the same code in a process that it forked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS_MAX = 10.0
POLL_SECONDS = 5.0
RETRY_SECONDS = 0.5
PIPE_BYTES = 64 * 1024
TAIL_BYTES = 64 * 1024
# What lies in a record's way, or has been removed from there, stays so; room may come back.
IN_THE_WAY = (
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
)

# Not typing's: its import would take longer than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class TrialForked(BaseException):
    """Raised in the forked process that is to become the trial, with what launch.json says."""

    def __init__(self, launch: Mapping[str, Any]) -> None:
        super().__init__()
        self.launch = launch


class OutputLog:
    """The trial's output on disk: its first `bytes_max` bytes and its end.

    Nothing is raised where the disk has no room: what is lost is counted, and a line says so later.
    """

    def __init__(self, path: str, bytes_max: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)
        self._bytes_max = bytes_max
        self._room = bytes_max - os.fstat(self.descriptor).st_size
        self._tail = b""
        self._left_out = 0
        self._lost = 0
        self._problem = ""
        self._at_line_start = True

    def write(self, content: bytes) -> None:
        """Append while there is room, then keep the last of it for `close`."""
        head = content[: max(0, self._room)]
        if head:
            self._room -= len(head)
            self._append(head)
        beyond = content[len(head) :]
        if beyond:
            if not self._left_out:
                limit = f"{self._bytes_max / 2**20:.0f} MiB"
                self._append_notice(
                    f"the log has reached its limit of {limit}: only its end will follow"
                )
            self._left_out += len(beyond)
            self._tail = (self._tail + beyond)[-TAIL_BYTES:]

    def close(self) -> None:
        """Append the end of what went beyond the limit; may be repeated while the disk is full."""
        left_out, self._left_out = self._left_out - len(self._tail), 0
        if left_out > 0:
            self._append_notice(f"{left_out} bytes of the log were left out here")
        tail, self._tail = self._tail, b""
        self._append(tail)

    def _append_notice(self, notice: str) -> None:
        start = "" if self._at_line_start else "\n"
        self._append(f"{start}[detcloud] {notice}\n".encode())

    def _append(self, content: bytes) -> None:
        if self._lost:
            start = b"" if self._at_line_start else b"\n"
            notice = f"[detcloud] {self._lost} bytes of the log were lost: {self._problem}\n"
            if not self._try_to_write(start + notice.encode()):
                self._lost += len(content)
                return
            self._lost = 0
        if content and not self._try_to_write(content):
            self._lost += len(content)

    def _try_to_write(self, content: bytes) -> bool:
        try:
            written = os.write(self.descriptor, content)
            while written < len(content):
                written += os.write(self.descriptor, content[written:])
        except OSError as error:
            self._problem = error.strerror or str(error)
            return False
        self._at_line_start = content.endswith(b"\n")
        return True


class Supervisor:
    """Runs the stages of one launch in turn and ends whatever processes they leave behind.

    With `forks_trial` the trial's process does not run its command: it leaves `run` by TrialForked.
    """

    def __init__(self, directory: str, *, forks_trial: bool = False) -> None:
        self.directory = directory
        self.forks_trial = forks_trial
        with open(f"{directory}/launch.json", encoding="utf-8") as file:  # noqa: PTH123
            self.launch = json.load(file)
        self.log = OutputLog(self.launch["log"], self.launch["log_bytes_max"])
        self.output, self._output_end = os.pipe()
        os.set_blocking(self.output, False)
        self._unwritten_record: dict[str, object] | None = None
        # The trial has removed the folder, or put something in the record's place.
        self._is_record_impossible = False
        self.kill_signalled = False
        self.killed = False
        self.kill_at: float | None = None
        self.wake, self._wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._wake_end, False)

    def run(self) -> int:
        """Run the stages until one fails or a kill is asked for, then record how it ended.

        Returns the exit code as a shell has it.
        """
        self._install_signal_handlers()
        os.close(os.open(f"{self.directory}/begun", os.O_WRONLY | os.O_CREAT, 0o600))
        stage, status = "", 0
        for stage, argv in self.launch["stages"]:
            if self.killed or self._is_kill_requested():
                self.killed = True
                break
            leader = self._spawn(argv)
            self._unwritten_record = {"stage": stage, **_process_record(leader)}
            status = self._wait(leader)
            if stage == "hook" and self._has_hook_passed():
                # The hook's shell became the trial.
                stage = "trial"
                break
            if status != 0:
                break
        # The trial is over: a late request must not end what records that, nor Python's own end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_descendants()
        os.close(self._output_end)
        while self._drain_output():
            pass
        code = os.waitstatus_to_exitcode(status)
        record = {
            "stage": stage,
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "killed": self.killed,
        }
        self.log.close()
        while not self._try_to_record("exit.json", record) and not self._is_record_impossible:
            time.sleep(RETRY_SECONDS)
            self.log.close()
        return code if code >= 0 else 128 - code

    def _install_signal_handlers(self) -> None:
        def note_kill_signal(*_: object) -> None:
            self.kill_signalled = True

        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, note_kill_signal)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def _spawn(self, argv: list[str]) -> int:
        supervisor = os.getpid()
        leader = os.fork()
        if leader == 0:
            try:
                self._become_trial_process(supervisor)
                if not self.forks_trial:
                    # A container has its variables already, those of its image among them.
                    environment = self.launch["environment"]
                    os.execvpe(argv[0], argv, os.environ if environment is None else environment)
            except OSError as error:
                os.write(2, f"{argv[0]} could not be started: {error}\n".encode())
                os._exit(127)
            raise TrialForked(self.launch)
        return leader

    def _become_trial_process(self, supervisor: int) -> None:
        """Set up this forked process as the trial's, before its program runs."""
        os.dup2(self._output_end, 1)
        os.dup2(self._output_end, 2)
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if self.kill_signalled:
            # The signal was for the trial, which could not receive it yet.
            os.kill(os.getpid(), signal.SIGTERM)
        os.umask(0o022)
        os.chdir(self.launch["cwd"])
        if self.forks_trial:
            descriptors = (
                self.wake,
                self._wake_end,
                self.output,
                self._output_end,
                self.log.descriptor,
            )
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            # Python ignores these, and what is ignored stays so in the program that follows.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)

    def _wait(self, leader: int) -> int:
        """Reap children until the leader ends, kill the rest of its group; the leader's status."""
        # An agent that found no process.json yet wrote kill.json and could not signal us.
        self.kill_signalled = self._is_kill_requested()
        while True:
            self._pursue_kill(leader)
            if _has_ended(leader):
                # Before it is reaped, so that the group's number cannot be another's yet.
                _kill_group(leader, signal.SIGKILL)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == leader:
                _kill_group(leader, signal.SIGKILL)
                return status
            if pid == 0:
                self._sleep()

    def _sleep(self) -> None:
        """Wait until a child ends or prints, a kill is requested, or its grace has passed."""
        timeout = POLL_SECONDS
        if self._unwritten_record is not None:
            if self._try_to_record("process.json", self._unwritten_record):
                self._unwritten_record = None
            else:
                timeout = RETRY_SECONDS
        if self.kill_at is not None:
            timeout = min(timeout, max(0.0, self.kill_at - time.monotonic()))
        select.select([self.wake, self.output], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 512)
        self._drain_output()

    def _drain_output(self) -> bool:
        """Move some of the output into the log; whether there was any."""
        try:
            content = os.read(self.output, PIPE_BYTES)
        except BlockingIOError:
            return False
        self.log.write(content)
        return bool(content)

    def _pursue_kill(self, leader: int) -> None:
        """Send SIGTERM once and SIGKILL after the grace, which a later request may shorten."""
        if self.kill_signalled:
            self.kill_signalled = False
            kill_at = time.monotonic() + self._grace_seconds()
            self.kill_at = min(kill_at, self.kill_at) if self.kill_at is not None else kill_at
            if not self.killed:
                self.killed = True
                _kill_group(leader, signal.SIGTERM)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            _kill_group(leader, signal.SIGKILL)
            self.kill_at = time.monotonic() + 1.0

    def _is_kill_requested(self) -> bool:
        return self.kill_signalled or os.path.exists(f"{self.directory}/kill.json")  # noqa: PTH110

    def _has_hook_passed(self) -> bool:
        return os.path.exists(f"{self.directory}/hook-passed")  # noqa: PTH110

    def _grace_seconds(self) -> float:
        try:
            # A trial may have put a pipe there, for which nobody must wait.
            descriptor = os.open(f"{self.directory}/kill.json", os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                return float(json.load(file)["grace_ms"]) / 1000
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            # Not the agent's kill: the engine, or the system's shutdown, waits for a while.
            return float(self.launch.get("unasked_grace_seconds", 0))

    def _try_to_record(self, name: str, content: Mapping[str, object]) -> bool:
        """Write a record; whether there was room for it."""
        new_file = f"{self.directory}/.{name}.new"
        try:
            with open(new_file, "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump(content, file)
            os.replace(new_file, f"{self.directory}/{name}")  # noqa: PTH105
        except OSError as error:
            self._is_record_impossible = error.errno in IN_THE_WAY
            return False
        return True


def supervise(directory: str, lock: int | None, *, forks_trial: bool = False) -> int:
    """Supervise the launch in `directory`; `lock` stays open until this process ends.

    Returns the exit code as a shell has it.
    """
    if lock is not None:
        os.setsid()
        os.set_inheritable(lock, False)
    # Processes that daemonise become our children instead of init's, so that the sweep finds them.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    return Supervisor(directory, forks_trial=forks_trial).run()


def _process_record(pid: int) -> dict[str, object]:
    """The ids of leader and supervisor, and the leader's start time in ticks where /proc has it."""
    fields = _stat_fields(str(pid))
    return {"pid": pid, "supervisor": os.getpid(), "start_time": fields[19] if fields else None}


def _stat_fields(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on: state, parent, group, session, ..."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _has_ended(leader: int) -> bool:
    # Python has no waitid on macOS before 3.13; there the group is killed after the reaping only.
    if not hasattr(os, "waitid"):
        return False
    return os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        # The leader has not made its session yet.
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, number)
    except PermissionError:
        return


def _kill_descendants() -> None:
    """Kill and reap all descendants; the children of a killed process become ours."""
    give_up_at = time.monotonic() + SWEEP_SECONDS_MAX
    while time.monotonic() < give_up_at:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return
        for pid in _child_pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _child_pids() -> list[int]:
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    parent = str(os.getpid())
    return [int(pid) for pid in pids if _stat_fields(pid)[1:2] == [parent]]


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"detcloud needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    sys.exit(supervise(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
