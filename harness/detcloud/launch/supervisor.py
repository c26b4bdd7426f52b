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
import os
import select
import signal
import sys
import time

# Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

if TYPE_CHECKING or __package__:
    from detcloud.launch import process_tree
    from detcloud.launch.launch_folder import LaunchFolder
    from detcloud.launch.output_log import OutputLog
else:
    # Run by its path, this file has no package. Importing the package would take longer.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import process_tree
    from launch_folder import LaunchFolder
    from output_log import OutputLog

POLL_SECONDS = 5.0
RETRY_SECONDS = 0.5
# The part of the grace period in which processes that read directives get no signal.
LISTENING_SHARE = 2 / 3
PIPE_BYTES = 64 * 1024


class TrialForked(BaseException):
    """Raised in the forked process that becomes the trial. `launch`: launch.json's content.

    A BaseException, so that no handler of Exception catches the fork.
    """

    def __init__(self, launch: Mapping[str, Any]) -> None:
        super().__init__()
        self.launch = launch


class Supervisor:
    """Runs the stages of a launch in order and kills all processes that the stages leave.

    A stage is a name, such as `hook` or `trial`, and a command line. With `forks_trial`, the
    process of the trial runs no command: TrialForked leaves `run` there.
    """

    def __init__(self, directory: str, *, forks_trial: bool = False) -> None:
        """Read the launch in `directory`, open the trial's log, and create the pipes.

        Raises OSError or ValueError if launch.json or the log cannot be opened.
        """
        self.folder = LaunchFolder(directory)
        self.forks_trial = forks_trial
        self.launch = self.folder.launch
        self.log = OutputLog(self.launch["log"], self.launch["log_bytes_max"])
        self.output, self._output_end = os.pipe()
        os.set_blocking(self.output, False)
        self._unwritten_record: dict[str, object] | None = None
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
        """Run the stages until a failure or a kill, kill all descendants, and write exit.json.

        Return the exit code of the last stage, or 128 + n after signal n. Return 0 if no stage ran.
        The process of a startup hook that has passed becomes the trial; record its end as the end
        of the stage `trial`. Repeat a failed record until it succeeds or cannot succeed. With
        `forks_trial`, raise TrialForked in the trial's process. Raise OSError if `begun` cannot be
        created.
        """
        self._install_signal_handlers()
        self.folder.mark_begun()
        stage, status = "", 0
        for stage, argv in self.launch["stages"]:
            if self.killed or self._is_kill_requested():
                self.killed = True
                break
            self.stage = stage
            leader = self._spawn(argv)
            self._unwritten_record = {"stage": stage, **process_tree.process_record(leader)}
            status = self._wait(leader)
            if stage == "hook" and self.folder.has_hook_passed():
                stage = "trial"
                break
            if status != 0:
                break
        # A late kill request must not interrupt the record of the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        process_tree.kill_descendants()
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
        while (
            not self.folder.try_to_record("exit.json", record)
            and not self.folder.is_record_impossible
        ):
            time.sleep(RETRY_SECONDS)
            self.log.close()
        return code if code >= 0 else 128 - code

    def _install_signal_handlers(self) -> None:
        """Note SIGTERM in `kill_signalled`, wake `_sleep` at SIGTERM and SIGCHLD, and ignore SIGINT
        and SIGHUP.
        """

        def note_kill_signal(*_: object) -> None:
            self.kill_signalled = True

        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, note_kill_signal)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def _spawn(self, argv: list[str]) -> int:
        """Fork a process that runs `argv`, and return the process id.

        If the program cannot be started, the new process prints the reason and exits with 127. With
        `forks_trial`, raise TrialForked in the new process instead. Raise OSError if no process can
        be created.
        """
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
        """Redirect stdout and stderr to the log's pipe, and give this fork the state of a new
        process.

        Start a session, become the launch's user, reset signals and umask, and change to the
        trial's folder. The kernel kills this process if the supervisor dies. Exit with 127 unless
        the parent is `supervisor`. If SIGTERM has arrived before the reset, send SIGTERM to this
        process. A fork that runs no command also closes the supervisor's descriptors. Raises
        OSError if the folder does not exist, or if this process may not become the user.
        """
        os.dup2(self._output_end, 1)
        os.dup2(self._output_end, 2)
        os.setsid()
        _become_user(self.launch.get("user"))
        # After the change of the user, which clears the request.
        process_tree.die_with_parent()
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
        """Reap children until the leader ends, kill the group, and return the leader's wait status.

        Meanwhile, follow kill requests, write process.json, and move output into the log.
        """
        # Before process.json exists, an agent writes kill.json but cannot send a signal.
        self.kill_signalled = self._is_kill_requested()
        while True:
            self._pursue_kill(leader)
            if process_tree.has_ended(leader):
                # Kill before the reaping, while no other group can have this number.
                process_tree.kill_group(leader, signal.SIGKILL)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == leader:
                process_tree.kill_group(leader, signal.SIGKILL)
                return status
            if pid == 0:
                self._sleep()

    def _sleep(self) -> None:
        """Wait until a child ends or prints, a signal arrives or is due, or POLL_SECONDS are over.

        Before, write process.json unless it is written; a failed write is repeated soon.
        Afterwards, move printed output into the log.
        """
        timeout = POLL_SECONDS
        if self._unwritten_record is not None:
            if self.folder.try_to_record("process.json", self._unwritten_record):
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
        """Move output of at most PIPE_BYTES from the pipe into the log. Return whether any was
        available. Do not wait.
        """
        try:
            content = os.read(self.output, PIPE_BYTES)
        except BlockingIOError:
            return False
        self.log.write(content)
        return bool(content)

    def _pursue_kill(self, leader: int) -> None:
        """Act on a kill signal: set `killed`, ask the trial to stop, and note the time of SIGKILL.

        Later signals can only shorten the grace. Send each postponed SIGTERM and SIGKILL that is
        due. Repeat SIGKILL every second. Do nothing without a signal.
        """
        if self.kill_signalled:
            self.kill_signalled = False
            request = self.folder.read_kill_request()
            grace_seconds = self.folder.grace_seconds(request)
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
            process_tree.kill_group(leader, signal.SIGKILL)
            self.kill_at = now + 1.0

    def _ask_to_stop(
        self, leader: int, request: Mapping[str, Any] | None, grace_seconds: float
    ) -> None:
        """Send SIGTERM to the programs that do not read the directives, or postpone the signal.

        The directives are the file by which the agent asks the trial to stop. The agent has written
        the directive before `request`. A process that reads its directives gets SIGTERM after
        LISTENING_SHARE of the grace. If the request's `saves` is set, a program without a handler
        gets no signal, since it may read the directives itself. A hook gets SIGTERM at once.
        Without a request, write stop.json for the agent, which then directs the trial to stop.
        """
        finder = _load_stop_signals()
        in_hook = self.stage == "hook" and not self.folder.has_hook_passed()
        if in_hook or finder is None:
            process_tree.kill_group(leader, signal.SIGTERM)
            return
        if request is None:
            # A stop by the engine or the system: the agent writes the directive for this record.
            deadline_ms = time.time_ns() // 1_000_000 + int(grace_seconds * 1000)
            self.folder.try_to_record("stop.json", {"deadline_ms": deadline_ms})
            self._signal_trainers(leader)
        elif finder.find_listeners(self.folder.trial_directory()):
            self.signal_at = time.monotonic() + grace_seconds * LISTENING_SHARE
        elif not self._signal_trainers(leader) and not request.get("saves"):
            process_tree.kill_group(leader, signal.SIGTERM)

    def _signal_trainers(self, leader: int) -> bool:
        """Send SIGTERM to the training processes that catch SIGTERM. Return whether any exists.

        Processes that read the directives, the file with the cluster's requests to stop, come
        first. If no such process catches SIGTERM, search `leader` and the processes below. Return
        False if stop_signals.py cannot be imported.
        """
        finder = _load_stop_signals()
        if finder is None:
            return False
        listeners = finder.find_listeners(self.folder.trial_directory())
        trainers = list(filter(finder.catches_sigterm, listeners)) or finder.find_catchers(leader)
        finder.send_sigterm(trainers)
        return bool(trainers)

    def _is_kill_requested(self) -> bool:
        """Return whether SIGTERM has arrived or the agent has written kill.json."""
        return self.kill_signalled or self.folder.has_kill_request()


def supervise(directory: str, lock: int | None, *, forks_trial: bool = False) -> int:
    """Run the launch in `directory` and return the exit code, 128 + n after signal n.

    With a descriptor `lock`, start a session; the descriptor stays open until this process ends.
    With `forks_trial`, raise TrialForked in the trial's process instead of running a command.
    Raise OSError or ValueError if launch.json or the log cannot be opened.
    """
    if lock is not None:
        os.setsid()
        os.set_inheritable(lock, False)
    process_tree.adopt_orphans()
    return Supervisor(directory, forks_trial=forks_trial).run()


def _become_user(user: Mapping[str, Any] | None) -> None:
    """Change the user and all groups of this process for good. Do nothing for None.

    Raise OSError if the process may not change its user.
    """
    if user is None:
        return
    os.setgroups(user["groups"])
    # Root's process changes the real, the effective and the saved id by these calls.
    os.setgid(user["gid"])
    os.setuid(user["uid"])


def _execute(argv: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process by the program. Use `sh` for `bash` if bash is missing.

    Return only by raising OSError: the program cannot be started.
    """
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        if argv[0] != "bash":
            raise
        os.execvpe("sh", ["sh", *argv[1:]], environment)


def _load_stop_signals() -> Any | None:
    """Import stop_signals.py from this folder. Return None if the import fails.

    The import fails, for example, after an update has deleted the folder of a running trial.
    """
    import importlib

    try:
        return importlib.import_module(f"{__package__ or ''}.stop_signals".lstrip("."))
    except (ImportError, OSError, SyntaxError):
        return None


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"detcloud needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    sys.exit(supervise(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
