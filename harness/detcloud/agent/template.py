"""A process with torch imported, from which trials are forked: the agent's side.

It begins when the first trial that it can run is prepared, and ends after some idle minutes, so
that an idle laptop has its memory back. Whatever goes wrong with it, the trial is started plainly
instead: after `fork` returned None the template is gone, or never heard of the launch.
`detcloud.launch.template` is the process itself.
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

from detcloud.agent.directory import parse_object

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
# The code's directory of a trial is first on its path; the template's must not be anybody's.
COMMAND = 'cd "$1" && exec "$2" -m detcloud.launch.template "$3"'

# What the interpreter, the C library, torch and what torch imports look at when they are loaded.
READ_AT_IMPORT = re.compile(
    "PYTHON|__PYVENV|LD_|DYLD_|MALLOC_|GLIBC_|LC_|LANG|TZ|OMP_|GOMP_|KMP_|ACC_|MKL|ONEDNN|DNNL"
    "|OPENBLAS|GOTO_|BLIS_|NVPL_|NUMEXPR_|VECLIB_|NUMPY|NPY_|TORCH|PYTORCH|ATEN_|C10_|CAFFE2_"
    "|KINETO|FX_|COMPILE_|INDUCTOR|TRITON|CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|HIP_|HSA_|ROC|MIOPEN|GLOO"
    "|GFORTRAN|I_MPI|OMPI|INTEL|OPENSSL|SSL|TQDM"
)


class Template:
    """At most one such process. All methods may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        *,
        command: str = COMMAND,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
    ) -> None:
        self._folder = folder
        self._environment = {**environment, "HOME": str(folder), "TMPDIR": str(folder / "tmp")}
        self._say = say
        self._command = command
        self._idle_seconds_max = idle_seconds_max
        self._turn = threading.Lock()
        self._pid: int | None = None
        self._socket: socket.socket | None = None
        self._modules: frozenset[str] = frozenset()
        self._used_at = 0.0
        self._retry_at = 0.0
        self._proven = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return self._pid

    def warm(self) -> None:
        """Return when it is ready, or will not be: at most half a minute."""
        with self._turn:
            self._used_at = time.monotonic()
            self._reap()
            if self._pid is None and self._used_at >= self._retry_at and not self._closed:
                self._begin()

    def fork(
        self, directory: Path, environment: Mapping[str, str], cwd: str, lock: int
    ) -> int | None:
        """The new supervisor's process id; None when the launch is to be started plainly.

        `lock` is passed on to it. None is certain only with the lock: a template that was killed
        because it did not answer may have forked before.
        """
        if not self._turn.acquire(timeout=ANSWER_SECONDS_MAX):
            return None
        try:
            if self._socket is None or not self._fits(environment, cwd):
                return None
            self._used_at = time.monotonic()
            return self._asked(self._socket, directory, lock)
        finally:
            self._turn.release()

    def tend(self) -> None:
        """End it when nobody has needed it for minutes."""
        if self._turn.acquire(blocking=False):
            try:
                self._reap()
                if time.monotonic() - self._used_at > self._idle_seconds_max:
                    self._end()
            finally:
                self._turn.release()

    def close(self) -> None:
        """End it, for good; what it forked goes on."""
        self._closed = True
        channel = self._socket
        if channel is not None:
            # Whoever waits for an answer of it waits no more.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        with self._turn:
            self._end()

    def _begin(self) -> None:
        try:
            self._spawn()
            self._modules = self._ready()
        except (OSError, ValueError) as error:
            self._end()
            if self._closed:
                return
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._say(f"trials start plainly, without a template: {error}{self._last_words()}")

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

    def _ready(self) -> frozenset[str]:
        """The modules that it has imported. Raises ValueError for anything but that."""
        modules = self._answer(READY_SECONDS_MAX).get("modules")
        if not isinstance(modules, list):
            raise ValueError("the template did not say that it is ready")
        return frozenset(map(str, modules))

    def _asked(self, channel: socket.socket, directory: Path, lock: int) -> int | None:
        try:
            request = json.dumps({"directory": str(directory)}).encode()
            channel.settimeout(ANSWER_SECONDS_MAX)
            socket.send_fds(channel, [request], [lock])
            supervisor = self._answer(ANSWER_SECONDS_MAX).get("supervisor")
            if type(supervisor) is not int or supervisor <= 1:
                raise ValueError(f"the template answered with {supervisor!r:.80}")
        except (OSError, ValueError) as error:
            self._end()
            if not self._proven:
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self._say(f"the template failed, a trial starts plainly: {error}{self._last_words()}")
            return None
        self._proven = True
        return supervisor

    def _answer(self, seconds_max: float) -> dict[str, Any]:
        """Raises TimeoutError, and ValueError for what is no answer."""
        assert self._socket is not None
        self._socket.settimeout(seconds_max)
        content = self._socket.recv(ANSWER_BYTES_MAX)
        if not content:
            raise ValueError("the template ended")
        answer = parse_object(content)
        if answer is None:
            raise ValueError(f"the template answered with {content[:80]!r}")
        return answer

    def _fits(self, environment: Mapping[str, str], cwd: str) -> bool:
        """Whether a trial with these variables and this code would not notice."""
        if any(READ_AT_IMPORT.match(name) for name in _differing(environment, self._environment)):
            return False
        # What is imported already could not be the trial's own module of that name.
        with os.scandir(cwd) as entries:
            return not any(entry.name.partition(".")[0] in self._modules for entry in entries)

    def _reap(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                    return
            self._pid = None
            self._end()

    def _end(self) -> None:
        """Kill and reap it; no request is left under way then."""
        pid, self._pid = self._pid, None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _last_words(self) -> str:
        try:
            words = (self._folder / "template.log").read_text(errors="replace").split()
        except OSError:
            return ""
        return f" ({' '.join(words)[-REASON_CHARACTERS_MAX:]})" if words else ""


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}
