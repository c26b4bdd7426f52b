"""The keeper of an agent on a machine without systemd, `python -I ROOT/keeper.py`.

The keeper starts the agent again after each end. SIGTERM stops the agent, whose trials then store
checkpoints. SIGHUP restarts the agent while the trials continue. The module imports no other module
of detcloud, so that it outlives versions of the agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 4 << 20
PAUSE_SECONDS_MAX = 30.0
LOCK_SECONDS = 1.0
# After this run time, the end of an agent does not count as another failed start.
STEADY_SECONDS = 60.0


class Keeper:
    """A process that keeps the agent alive."""

    def __init__(self, root: Path, work: Path) -> None:
        self._root = root
        self._work = work
        self._agent: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Start the agent again after each end, until SIGTERM or SIGINT. Return without an agent.

        Return at once if another keeper runs in the work directory.
        """
        with (self._work / "keeper.lock").open("ab") as lock:
            if not _lock(lock.fileno()):
                return
            lock.truncate(0)
            lock.write(json.dumps({"pid": os.getpid()}).encode())
            lock.flush()
            signal.signal(signal.SIGTERM, self._stop)
            signal.signal(signal.SIGINT, self._stop)
            signal.signal(signal.SIGHUP, self._pass_on)
            self._keep()

    def _keep(self) -> None:
        failures = 0
        command = [sys.executable, "-I", str(self._root / "launcher.py")]
        while not self._stopping.is_set():
            began = time.monotonic()
            with self._open_log() as log:
                self._agent = subprocess.Popen(
                    command, cwd=self._work, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            if self._stopping.is_set():
                self._agent.terminate()
            self._agent.wait()
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            self._stopping.wait(min(PAUSE_SECONDS_MAX, 0.1 * 2.0**failures))

    def _open_log(self) -> BinaryIO:
        """Open the agent's log for appending. Rename a large log to `agent.log.1` first."""
        path = self._work / "agent.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES_MAX:
                path.replace(path.with_name("agent.log.1"))
        return path.open("ab")

    def _stop(self, *_: object) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def _pass_on(self, *_: object) -> None:
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(number)


def _lock(descriptor: int) -> bool:
    """Lock a file, and return whether the lock was free within LOCK_SECONDS.

    A process that looks for a keeper holds the lock for a moment.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def main() -> None:
    """Keep the agent alive whose installation contains this file."""
    os.umask(0o077)
    root = Path(__file__).resolve().parent
    settings = json.loads((root / "agent.json").read_bytes())
    Keeper(root, Path(settings["work"])).run()


if __name__ == "__main__":
    main()
