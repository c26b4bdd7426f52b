"""A trial's supervisor, `python -I -S supervisor.py FOLDER [LOCK]`: runs the trial's processes.

If the agent dies, the supervisor keeps the trial running and records the exit status. It is run by
its path and imports little, since each trial has a supervisor (docs/benchmarks.md, `starts`).

In FOLDER it reads launch.json, creates the empty file `begun` before all processes, and writes
process.json when a stage starts. It reads kill.json at SIGTERM, and writes exit.json after all
processes have ended. A SIGTERM without kill.json comes from the engine or the system; then it
writes stop.json for the agent. LOCK is a descriptor with an exclusive flock, which it holds for
life. A container has no LOCK: there the supervisor is the first process, whose end is the
container's end. A record that does not fit on the disk is written later.

The trial's output passes through a pipe into the log, so that a full disk or a log limit does not
stop the trial. `detcloud.launch.fork_server` runs the same code in a forked process.
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
# The part of the grace period in which processes that read directives get no signal.
LISTENING_SHARE = 2 / 3
PIPE_BYTES = 64 * 1024
TAIL_BYTES = 64 * 1024
# Errors that waiting does not solve, unlike a full disk.
IN_THE_WAY = (
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
)

# Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class TrialForked(BaseException):
    """Raised in the forked process that becomes the trial. `launch`: launch.json's content."""

    def __init__(self, launch: Mapping[str, Any]) -> None:
        super().__init__()
        self.launch = launch


class OutputLog:
    """The trial's output on disk: the first `bytes_max` bytes and the last TAIL_BYTES.

    A full disk raises no error. The lost bytes are counted, and a later line reports the number.
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
        """Append `content` up to the limit, then a notice. Keep the last bytes for `close`."""
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
        """Append a notice of omitted bytes and the kept last bytes. May be repeated."""
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
    """Runs the stages of a launch in order and kills all processes that the stages leave.

    With `forks_trial`, the trial's process runs no command: TrialForked leaves `run` there.
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
        # True if the trial has removed the folder or blocked the record's path.
        self._is_record_impossible = False
        self.kill_signalled = False
        self.killed = False
        self.kill_at: float | None = None
        # The time at which processes that read directives get SIGTERM.
        self.signal_at: float | None = None
        self.stage = ""
        self.wake, self._wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._wake_end, False)

    def run(self) -> int:
        """Run the stages until a failure or a kill, record the end, and return the exit code,
        128 + n after signal n.
        """
        self._install_signal_handlers()
        os.close(os.open(f"{self.directory}/begun", os.O_WRONLY | os.O_CREAT, 0o600))
        stage, status = "", 0
        for stage, argv in self.launch["stages"]:
            if self.killed or self._is_kill_requested():
                self.killed = True
                break
            self.stage = stage
            leader = self._spawn(argv)
            self._unwritten_record = {"stage": stage, **_process_record(leader)}
            status = self._wait(leader)
            if stage == "hook" and self._has_hook_passed():
                stage = "trial"
                break
            if status != 0:
                break
        # A late kill request must not interrupt the record of the end.
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
                    # A container already has the variables, including the image's.
                    environment = self.launch["environment"]
                    _execute(argv, os.environ if environment is None else environment)
            except OSError as error:
                os.write(2, f"{argv[0]} could not be started: {error}\n".encode())
                os._exit(127)
            raise TrialForked(self.launch)
        return leader

    def _become_trial_process(self, supervisor: int) -> None:
        """Redirect stdout and stderr, start a session, reset signals and umask, change the folder.
        Exit with 127 unless the parent is `supervisor`. Repeat an earlier kill signal as SIGTERM.
        A fork that runs no command also closes the supervisor's descriptors.
        """
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
            # The trial could not receive the signal before.
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
            # Python ignores these signals, and the program would inherit that.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)

    def _wait(self, leader: int) -> int:
        """Reap children until the leader ends, kill the group, and return the wait status."""
        # Before process.json exists, an agent writes kill.json but cannot send a signal.
        self.kill_signalled = self._is_kill_requested()
        while True:
            self._pursue_kill(leader)
            if _has_ended(leader):
                # Kill before the reaping, while no other group can have this number.
                _kill_group(leader, signal.SIGKILL)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == leader:
                _kill_group(leader, signal.SIGKILL)
                return status
            if pid == 0:
                self._sleep()

    def _sleep(self) -> None:
        """Wait until a child ends or prints, or a kill is due. Write pending records."""
        timeout = POLL_SECONDS
        if self._unwritten_record is not None:
            if self._try_to_record("process.json", self._unwritten_record):
                self._unwritten_record = None
            else:
                timeout = RETRY_SECONDS
        for due_at in (self.kill_at, self.signal_at):
            if due_at is not None:
                timeout = min(timeout, max(0.0, due_at - time.monotonic()))
        select.select([self.wake, self.output], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 512)
        self._drain_output()

    def _drain_output(self) -> bool:
        """Move available output into the log. Return whether any was available."""
        try:
            content = os.read(self.output, PIPE_BYTES)
        except BlockingIOError:
            return False
        self.log.write(content)
        return bool(content)

    def _pursue_kill(self, leader: int) -> None:
        """Ask the trial to stop after a request; kill the trial after the shortest grace."""
        if self.kill_signalled:
            self.kill_signalled = False
            request = self._kill_request()
            grace_seconds = self._grace_seconds(request)
            kill_at = time.monotonic() + grace_seconds
            self.kill_at = min(kill_at, self.kill_at) if self.kill_at is not None else kill_at
            if not self.killed:
                self.killed = True
                self._ask_to_stop(leader, request, grace_seconds)
        now = time.monotonic()
        if self.signal_at is not None and now >= self.signal_at:
            self.signal_at = None
            self._signal_trainers(leader)
        if self.kill_at is not None and now >= self.kill_at:
            _kill_group(leader, signal.SIGKILL)
            self.kill_at = now + 1.0

    def _ask_to_stop(
        self, leader: int, request: Mapping[str, Any] | None, grace_seconds: float
    ) -> None:
        """Send SIGTERM to the programs that do not read the directives, or postpone the signal.

        The agent has written the directive before `request`. A process that reads its directives
        gets SIGTERM late. If `saves` is set, a program without a handler gets no signal, since it
        may read the directives itself.
        """
        finder = _load_stop_signals()
        in_hook = self.stage == "hook" and not self._has_hook_passed()
        if in_hook or finder is None:
            _kill_group(leader, signal.SIGTERM)
            return
        if request is None:
            # A stop by the engine or the system: the agent writes the directive for this record.
            deadline_ms = time.time_ns() // 1_000_000 + int(grace_seconds * 1000)
            self._try_to_record("stop.json", {"deadline_ms": deadline_ms})
            self._signal_trainers(leader)
        elif finder.find_listeners(self._trial_directory()):
            self.signal_at = time.monotonic() + grace_seconds * LISTENING_SHARE
        elif not self._signal_trainers(leader) and not request.get("saves"):
            _kill_group(leader, signal.SIGTERM)

    def _signal_trainers(self, leader: int) -> bool:
        """Send SIGTERM to the training processes that catch SIGTERM. Return whether any exists."""
        finder = _load_stop_signals()
        if finder is None:
            return False
        found = finder.find_listeners(self._trial_directory())
        found = list(filter(finder.catches_sigterm, found)) or finder.find_catchers(leader)
        finder.send_sigterm(found)
        return bool(found)

    def _trial_directory(self) -> str:
        variables = self.launch["environment"]
        return str((os.environ if variables is None else variables).get("DETCLOUD_TRIAL_DIR", ""))

    def _is_kill_requested(self) -> bool:
        return self.kill_signalled or os.path.exists(f"{self.directory}/kill.json")  # noqa: PTH110

    def _has_hook_passed(self) -> bool:
        return os.path.exists(f"{self.directory}/hook-passed")  # noqa: PTH110

    def _kill_request(self) -> Mapping[str, Any] | None:
        """Return the agent's request. Return None for a SIGTERM of the engine or the system."""
        try:
            # A trial may have put a pipe there, which must not block.
            descriptor = os.open(f"{self.directory}/kill.json", os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                request = json.load(file)
        except (OSError, ValueError, RecursionError):
            return None
        return request if isinstance(request, dict) else None

    def _grace_seconds(self, request: Mapping[str, Any] | None) -> float:
        """Return the seconds until SIGKILL: the request's, or without a request the launch's.
        Return 0 for an invalid request, or if the trial has removed its launch record.
        """
        if request is None:
            is_left = os.path.exists(f"{self.directory}/launch.json")  # noqa: PTH110
            return float(self.launch.get("unasked_grace_seconds", 0)) if is_left else 0.0
        try:
            return float(request["grace_ms"]) / 1000
        except (ValueError, KeyError, TypeError):
            return 0.0

    def _try_to_record(self, name: str, content: Mapping[str, object]) -> bool:
        """Write a record. Return False if that fails, for example on a full disk."""
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
    """Supervise the launch in `directory` and return the exit code, 128 + n after signal n.

    The descriptor `lock` stays open until this process ends.
    """
    if lock is not None:
        os.setsid()
        os.set_inheritable(lock, False)
    # Daemons become children of this process instead of init's, so that the sweep finds daemons.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    return Supervisor(directory, forks_trial=forks_trial).run()


def _process_record(pid: int) -> dict[str, object]:
    """Return `pid`, this supervisor's id, and the start time of `pid` in ticks, if known."""
    fields = _stat_fields(str(pid))
    return {"pid": pid, "supervisor": os.getpid(), "start_time": fields[19] if fields else None}


def _stat_fields(pid: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. Empty without such a process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _execute(argv: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process by the program. Use `sh` for `bash` if bash is missing."""
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        if argv[0] != "bash":
            raise
        os.execvpe("sh", ["sh", *argv[1:]], environment)


def _has_ended(leader: int) -> bool:
    # Python on macOS has waitid since 3.13. Before, the group is killed only after the reaping.
    if not hasattr(os, "waitid"):
        return False
    return os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        # The leader has not created a session yet.
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, number)
    except PermissionError:
        return


def _kill_descendants() -> None:
    """Kill and reap all descendants, for SWEEP_SECONDS_MAX at most."""
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


def _load_stop_signals() -> Any | None:
    """Import stop_signals.py from this folder. Return None if the import fails."""
    import importlib

    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    if not __package__ and folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(f"{__package__ or ''}.stop_signals".lstrip("."))
    except (ImportError, OSError, SyntaxError):
        return None


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"detcloud needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    sys.exit(supervise(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
