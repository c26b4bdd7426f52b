"""The agent's side of the fork server, a process with torch imported that forks trials.

The process, `detcloud.launch.fork_server`, starts when the first suitable trial is prepared, and
ends after some idle minutes to free the memory. If the fork server fails, the trial is started
plainly: after `fork` has returned None, the process is gone or never received the launch. Messages
and files call the process the template.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.kernel_cache import KERNEL_VARIABLES
from detcloud.shared.files import parse_json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DESCRIPTOR = 200
READY_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 2.0
IDLE_SECONDS_MAX = 300.0
RETRY_SECONDS = 300.0
ANSWER_BYTES_MAX = 1 << 20
REASON_CHARACTERS_MAX = 300
# Python imports from the working directory first, so the fork server needs one without modules.
COMMAND = 'cd "$1" && exec "$2" -m detcloud.launch.fork_server "$3"'

# The suffixes of importable files, on any system and for any version of Python.
MODULE_SUFFIXES = (".py", ".pyc", ".pyd", ".so")

# The variables that the interpreter, the C library, torch and torch's imports read at import.
READ_AT_IMPORT = re.compile(
    "PYTHON|__PYVENV|LD_|DYLD_|MALLOC_|GLIBC_|LC_|LANG|TZ|OMP_|GOMP_|KMP_|ACC_|MKL|ONEDNN|DNNL"
    "|OPENBLAS|GOTO_|BLIS_|NVPL_|NUMEXPR_|VECLIB_|NUMPY|NPY_|TORCH|PYTORCH|ATEN_|C10_|CAFFE2_"
    "|KINETO|FX_|COMPILE_|INDUCTOR|TRITON|CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|HIP_|HSA_|ROC|MIOPEN|GLOO"
    "|GFORTRAN|I_MPI|OMPI|INTEL|OPENSSL|SSL|TQDM"
)


class ForkServer:
    """The fork server of an agent, at most one process. Several threads may use the object.

    Args:
        folder: the process's home and working directory, which must contain no modules.
        environment: the variables that trials have by default.
        log_line: writes to the agent's log.
        command: the shell command that starts the process, for tests.
        idle_seconds_max: the time without use after which the process is ended.
        ready_seconds_max: the time that a new process may take until it is ready.
        answer_seconds_max: the limit on each wait for a running process.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        log_line: Callable[[str], None],
        *,
        command: str = COMMAND,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        ready_seconds_max: float = READY_SECONDS_MAX,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self._folder = folder
        self._environment = {**environment, "HOME": str(folder), "TMPDIR": str(folder / "tmp")}
        self._log_line = log_line
        self._command = command
        self._idle_seconds_max = idle_seconds_max
        self._ready_seconds_max = ready_seconds_max
        self._answer_seconds_max = answer_seconds_max
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._socket: socket.socket | None = None
        self._modules: frozenset[str] = frozenset()
        self._used_at = 0.0
        self._retry_at = 0.0
        self._proven = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process's id. None while no process runs."""
        return self._pid

    def warm_up(self) -> None:
        """Start the process unless it runs. Wait until it is ready or has failed, at most 30 s.

        Do nothing after `close`, or within RETRY_SECONDS of a failure. Log a failure, do not raise.
        """
        with self._lock:
            self._used_at = time.monotonic()
            self._reap()
            if self._pid is None and self._used_at >= self._retry_at and not self._closed:
                self._start()

    def fork(
        self, directory: Path, environment: Mapping[str, str], cwd: str, lock: int
    ) -> int | None:
        """Fork a supervisor for a launch, and return the supervisor's process id.

        Return None if the launch must be started plainly: no fork server is ready, the trial needs
        other settings or modules, or the request failed. A failure is logged and ends the fork
        server. The fork server may have forked before a failure; the lock then decides.

        Args:
            directory: the folder with launch.json.
            environment: the trial's environment variables.
            cwd: the trial's working directory.
            lock: the descriptor of the launch's lock, which the supervisor inherits.
        """
        if not self._lock.acquire(timeout=self._answer_seconds_max):
            return None
        try:
            if self._socket is None or not self._can_fork(environment, cwd):
                return None
            self._used_at = time.monotonic()
            return self._request_supervisor(self._socket, directory, lock)
        finally:
            self._lock.release()

    def close_if_idle(self) -> None:
        """End the process after `idle_seconds_max` without use. Do nothing during other calls."""
        if self._lock.acquire(blocking=False):
            try:
                self._reap()
                if time.monotonic() - self._used_at > self._idle_seconds_max:
                    self._kill()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the process for good, so that `warm_up` starts no other. Forked trials continue."""
        self._closed = True
        channel = self._socket
        if channel is not None:
            # A thread that waits for an answer is woken.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._kill()

    def _start(self) -> None:
        try:
            self._spawn()
            self._modules = self._receive_modules()
        except (OSError, ValueError) as error:
            self._kill()
            if self._closed:
                return
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._log_line(
                f"trials start without the template process: {error}{self._end_of_log()}"
            )

    def _spawn(self) -> None:
        (self._folder / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._proven = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        log = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._folder / "template.log"), log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), DESCRIPTOR),
        ]
        words = [self._command, "sh", str(self._folder), sys.executable, str(DESCRIPTOR)]
        argv = ["/bin/sh", "-c", *words]
        with theirs:
            self._pid = os.posix_spawn(argv[0], argv, self._environment, file_actions=actions)

    def _receive_modules(self) -> frozenset[str]:
        """Wait for the process to become ready, and return the names of imported modules.

        Raise ValueError for a malformed answer, TimeoutError after `ready_seconds_max`.
        """
        modules = self._receive_answer(self._ready_seconds_max).get("modules")
        if not isinstance(modules, list):
            raise ValueError("the template process did not become ready")
        return frozenset(map(str, modules))

    def _request_supervisor(self, channel: socket.socket, directory: Path, lock: int) -> int | None:
        try:
            request = json.dumps({"directory": str(directory)}).encode()
            channel.settimeout(self._answer_seconds_max)
            socket.send_fds(channel, [request], [lock])
            supervisor = self._receive_answer(self._answer_seconds_max).get("supervisor")
            if type(supervisor) is not int or supervisor <= 1:
                raise ValueError(f"the template process answered with {supervisor!r:.80}")
        except (OSError, ValueError) as error:
            self._kill()
            if not self._proven:
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self._log_line(
                "the template process failed, a trial starts without it: "
                f"{error}{self._end_of_log()}"
            )
            return None
        self._proven = True
        return supervisor

    def _receive_answer(self, seconds_max: float) -> dict[str, Any]:
        """Wait for an answer of the process, and return the answer's JSON object.

        Raise TimeoutError after `seconds_max`. Raise ValueError if the process has ended or the
        answer is no JSON object.
        """
        assert self._socket is not None
        self._socket.settimeout(seconds_max)
        content = self._socket.recv(ANSWER_BYTES_MAX)
        if not content:
            raise ValueError("the template process ended")
        answer = parse_json_object(content)
        if answer is None:
            raise ValueError(f"the template process answered with {content[:80]!r}")
        return answer

    def _can_fork(self, environment: Mapping[str, str], cwd: str) -> bool:
        """Whether a forked trial behaves like a plainly started trial.

        False if a variable that is read at import differs from the process's variables, or if the
        folder `cwd` contains a module with the name of an imported module.
        """
        # Libraries read the kernel folders' variables late, so a forked trial may change them.
        own = {*KERNEL_VARIABLES}
        if environment.get("PYTHONUSERBASE") == environment.get("VIRTUAL_ENV"):
            own.add("PYTHONUSERBASE")
        differing = _differing_names(environment, self._environment) - own
        if any(READ_AT_IMPORT.match(name) for name in differing):
            return False
        # An imported module would hide the trial's own module of the same name.
        with os.scandir(cwd) as entries:
            return not any(
                entry.name.partition(".")[0] in self._modules and _is_module(entry)
                for entry in entries
            )

    def _reap(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                    return
            self._pid = None
            self._kill()

    def _kill(self) -> None:
        """Kill and reap the process, if any, and close the socket to the process."""
        pid, self._pid = self._pid, None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _end_of_log(self) -> str:
        try:
            words = (self._folder / "template.log").read_text(errors="replace").split()
        except OSError:
            return ""
        return f" ({' '.join(words)[-REASON_CHARACTERS_MAX:]})" if words else ""


def _is_module(entry: os.DirEntry[str]) -> bool:
    """Whether Python might import the entry: a folder, or a file with a module's suffix."""
    return entry.name.endswith(MODULE_SUFFIXES) or entry.is_dir()


def _differing_names(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}
