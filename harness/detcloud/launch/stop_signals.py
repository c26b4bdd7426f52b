"""The processes of a trial that get SIGTERM when the trial is stopped.

A trial is asked to stop by its directives. SIGTERM is sent only to programs that catch it, and
neither to a shell above the program nor to a worker of a data loader. The death of such a worker
would end the training before its checkpoint. A process that reads its directives writes its id into
the claim of its rank, `out/.rank-N`; such a process is called a listener here.

The supervisor loads this module by its path, so this module imports nothing of the package. Without
/proc, as on macOS, the functions find no process.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CLAIM_PREFIX = ".rank-"
CLAIM_BYTES_MAX = 64
SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
# Words in the command line of helper processes.
WORKER_WORDS = (
    b"multiprocessing.spawn",
    b"multiprocessing.forkserver",
    b"multiprocessing.resource_tracker",
    b"popen_loky",
    b"compile_worker",
)
# Programs and modules that start the ranks of a trial and kill all ranks at SIGTERM.
LAUNCHER_NAMES = (
    b"torchrun",
    b"deepspeed",
    b"accelerate",
    b"horovodrun",
    b"mpirun",
    b"mpiexec",
    b"orterun",
    b"prterun",
)
# The command line of Apptainer above the program in a container: the prefix, and the image.
CONTAINER_PARENT = b"Apptainer runtime parent"
LAUNCHER_MODULES = (
    b"torch.distributed.",
    b"detcloud.launch.",
    b"deepspeed.launcher.",
    b"accelerate.commands.",
    b"horovod.runner",
)
# Modules that match LAUNCHER_MODULES, but train in the same process.
TRAINER_MODULES = (
    b"detcloud.launch.trial",
    b"detcloud.launch.trial_worker",
    b"detcloud.launch.fork_server",
)
LAUNCHER_WORDS_MAX = 6


class ProcessTable:
    """The processes of this machine at the time of creation."""

    def __init__(self) -> None:
        """Read all processes from /proc, except ended processes. Without /proc, find none."""
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        self._commands: dict[int, bytes] = {}
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
        except OSError:
            names = []
        for name in names:
            fields = _stat_fields(name)
            if len(fields) > 1 and fields[0] not in ("Z", "X"):
                pid, parent = int(name), int(fields[1])
                self._parents[pid] = parent
                self._children.setdefault(parent, []).append(pid)

    def children(self, pid: int) -> list[int]:
        """Return the ids of the processes that `pid` has started, or inherited from an ended
        process.

        Return an empty list for an unknown process.
        """
        return self._children.get(pid, [])

    def is_worker(self, pid: int) -> bool:
        """Return whether the process is a fork of its parent, or a helper process of a library.

        A fork has the parent's command line. The command line of a helper process of
        multiprocessing, loky or torch's compiler has a word of WORKER_WORDS. Return False for an
        unknown process.
        """
        command = self._command(pid)
        parent = self._parents.get(pid, 0)
        is_fork = bool(command) and command == self._command(parent)
        return is_fork or any(word in command for word in WORKER_WORDS)

    def is_above_program(self, pid: int) -> bool:
        """Return whether the process is a launcher with a running program below."""
        children = self.children(pid)
        return self._is_launcher(pid) and any(not self.is_worker(child) for child in children)

    def _is_launcher(self, pid: int) -> bool:
        """Return whether the command line names a launcher of detcloud or another package."""
        words = self._command(pid).split(b"\0")[:LAUNCHER_WORDS_MAX]
        if words[0].startswith(CONTAINER_PARENT):
            return True
        names = [word.rpartition(b"/")[2] for word in words]
        if any(name in LAUNCHER_NAMES for name in names[:2]):
            return True
        module = words[words.index(b"-m") + 1 :][:1] if b"-m" in words else []
        is_known = bool(module) and module[0].startswith(LAUNCHER_MODULES)
        return is_known and module[0] not in TRAINER_MODULES

    def _command(self, pid: int) -> bytes:
        """Return the command line of a process, with zero bytes between the words. Cached."""
        if pid not in self._commands:
            self._commands[pid] = _read_bytes(f"/proc/{pid}/cmdline")
        return self._commands[pid]


def find_listeners(trial_directory: str) -> list[int]:
    """Return the ids of the live processes that read this trial's directives themselves.

    The directives are the file in `trial_directory` by which the cluster asks the trial to stop.
    Return an empty list if the directory cannot be read.
    """
    out = f"{trial_directory}/out"
    try:
        names = [name for name in os.listdir(out) if name.startswith(CLAIM_PREFIX)]  # noqa: PTH208
    except OSError:
        return []
    found = []
    for name in names:
        claim = _read_bytes(f"{out}/{name}", CLAIM_BYTES_MAX).decode("latin-1")
        pid, _, ticks = claim.partition(" ")
        own = _stat_fields(pid) if pid.isascii() and pid.isdecimal() and int(pid) > 1 else []
        # A later process with the id of an ended process has another start time.
        if len(own) > 19 and own[0] not in ("Z", "X") and own[19] == ticks.strip():
            found.append(int(pid))
    return found


def find_catchers(leader: int) -> list[int]:
    """Return the ids of the training programs that catch SIGTERM, among `leader` and descendants.

    In each branch of the process tree, return only the uppermost such program. Skip workers, and
    launchers above a running program.
    """
    table = ProcessTable()
    found, waiting = [], [leader]
    while waiting:
        pid = waiting.pop()
        is_worker = pid != leader and table.is_worker(pid)
        if is_worker or not catches_sigterm(pid) or table.is_above_program(pid):
            waiting.extend(table.children(pid))
        else:
            found.append(pid)
    return found


def catches_sigterm(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM; False for an ended process."""
    for line in _read_bytes(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) & SIGTERM_BIT)
    return False


def send_sigterm(pids: Sequence[int]) -> None:
    """Send SIGTERM to the processes. Skip processes that have ended or belong to other users."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
        except (ProcessLookupError, PermissionError):
            continue


def _stat_fields(pid: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on: state, parent, group, session, and so
    on.

    Return an empty list if the process does not exist.
    """
    return _read_bytes(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def _read_bytes(path: str, size: int = 1 << 16) -> bytes:
    """Return the first `size` bytes of a file, or b"" if the file cannot be read."""
    try:
        # A trial may have put a pipe into this place, which must not block the caller.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, size)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
