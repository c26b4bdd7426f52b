"""The agent of an embedded cluster: a process of its own, started again when it ends.

Trials do not depend on their agent: one that a crash left behind is killed, and its successor takes
over its trials. So there are never two agents under one name.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import detcloud
from detcloud.shared.processes import Process, is_alive, read_process
from lambdas.local.home import HomeFolder

log = logging.getLogger(__name__)

RECORD = "agent"
LOG_BYTES_MAX = 4 * 1024 * 1024
# `detcloud down` gives the server 20 s: time for the trials, then for their exits, then for us.
TRIAL_STOP_SECONDS = 11.0
STOP_SECONDS_MAX = 17.0
BACKOFF_SECONDS_MAX = 30.0
# An agent that ran so long did not fail to start.
STEADY_SECONDS = 60.0
POLL_SECONDS = 0.5


def agent_command(home: HomeFolder, url: str, name: str, pool: str, slots: int | None) -> list[str]:
    """Return the agent's command line."""
    # -P keeps the folder we are in, which may hold a module of any name, out of the imports.
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", url, "--name", name]
    command += ["--pool", pool, "--token-file", str(home.folder / "agent.token")]
    command += ["--work-dir", str(home.agent), "--stop-seconds", str(TRIAL_STOP_SECONDS)]
    return command + (["--slots", str(slots)] if slots is not None else [])


class AgentKeeper:
    """Keeps one agent process alive. `on_start` is called with the process id of each."""

    def __init__(
        self, home: HomeFolder, command: Sequence[str], on_start: Callable[[int], None]
    ) -> None:
        self._home = home
        self._command = list(command)
        self._on_start = on_start
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    def start(self) -> None:
        """Replace the agent that an earlier server left, and keep one alive from now on."""
        kill_former_agent(self._home)
        self._thread.start()

    def stop(self) -> None:
        """Stop the agent, which preempts its trials and reports their exits, for at most 17 s."""
        self._stopping.set()
        with self._changing:
            process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            log.warning("the agent took too long to stop and was killed")
            process.kill()
            process.wait()
        self._home.remove_record(RECORD)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            if self._spawn() is None:
                return
            code = self._wait()
            if self._stopping.is_set():
                return
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            log.warning("the agent ended with code %s: %s", code, self._last_line())
            self._stopping.wait(min(BACKOFF_SECONDS_MAX, 0.2 * 2.0**failures))

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._changing:
            if self._stopping.is_set():
                return None
            with self._rotate_log().open("ab") as errors:
                process = subprocess.Popen(
                    self._command,
                    env=agent_environment(),
                    cwd=self._home.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    # A Ctrl-C in our terminal is ours to pass on, once.
                    start_new_session=True,
                )
            self._process = process
        found = read_process(process.pid)
        ticks = found.started_ticks if found else 0
        self._home.write_record(RECORD, {"pid": process.pid, "started_ticks": ticks})
        self._on_start(process.pid)
        return process

    def _wait(self) -> int | None:
        process = self._process
        assert process is not None
        return process.wait()

    def _rotate_log(self) -> Path:
        path = self._home.folder / "agent.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES_MAX:
                path.replace(path.with_suffix(".log.1"))
        return path

    def _last_line(self) -> str:
        try:
            lines = self._rotate_log().read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def kill_former_agent(home: HomeFolder) -> None:
    """Kill the agent of an earlier server, if it is still the same process; its trials go on."""
    record = home.read_record(RECORD)
    pid, ticks = record.get("pid"), record.get("started_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return
    former = Process(pid, 0, ticks, "")
    if not is_alive(former):
        return
    log.info("replacing the agent of an earlier server, process %d", pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while is_alive(former) and time.monotonic() < until:
        time.sleep(0.01)


def agent_environment() -> dict[str, str]:
    """Return our environment, with `detcloud` importable."""
    packages = str(Path(detcloud.__file__).parents[1])
    folders = [packages, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
