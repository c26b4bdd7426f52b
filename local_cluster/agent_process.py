"""The supervision of an embedded cluster's agent process, which is started again after each end.

Trials run independently of their agent. An agent that a crashed server left behind is killed, and
the next agent takes over its trials. So two agents never use the same name.
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
from local_cluster.home import HomeFolder

log = logging.getLogger(__name__)

RECORD = "agent"
LOG_BYTES_MAX = 4 * 1024 * 1024
# `detcloud down` waits 20 s for the server: first the trials stop, then the agent reports their
# exits, then the server ends.
TRIAL_STOP_SECONDS = 11.0
STOP_SECONDS_MAX = 17.0
BACKOFF_SECONDS_MAX = 30.0
# After this run time, the end of an agent does not count as another failed start.
STEADY_SECONDS = 60.0
POLL_SECONDS = 0.5


def agent_command(home: HomeFolder, url: str, name: str, pool: str, slots: int | None) -> list[str]:
    """Return the command line of the machine's own agent.

    Args:
        url: the URL of the server.
        name: the name of the agent.
        pool: the pool that the agent joins.
        slots: the number of CPU slots. None for slots of the detected devices.
    """
    # -P excludes the working directory, which may contain any module, from the imports.
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", url, "--name", name]
    command += ["--pool", pool, "--token-file", str(home.folder / "agent.token")]
    command += ["--work-dir", str(home.agent), "--stop-seconds", str(TRIAL_STOP_SECONDS)]
    return command + (["--slots", str(slots)] if slots is not None else [])


class AgentKeeper:
    """A thread that keeps an agent process alive.

    Args:
        home: the cluster's folder, with the agent's log and the record of its process.
        command: the agent's command line.
        on_start: called with the process id of each started process.
    """

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
        """Kill the agent of an earlier server, then keep a new agent alive in a thread.

        Wait up to 5 s for the exit of the earlier agent, but not for the start of the new agent.
        Each end and each failed start is logged. The agent is then started again after a pause,
        which doubles from 0.4 s up to BACKOFF_SECONDS_MAX. After a run of more than STEADY_SECONDS,
        the pause is 0.4 s again. A keeper starts only once.
        """
        kill_former_agent(self._home)
        self._thread.start()

    def stop(self) -> None:
        """Stop the agent process, wait for the exit, and delete the record of the process.

        On SIGTERM, the agent preempts its trials and reports their exits. The agent is killed after
        STOP_SECONDS_MAX. If no agent was started, only prevent a start. No agent starts afterwards.
        """
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
        """Start the agent again after each end and a pause, until `stop` is called. Log each end.

        The pause doubles from 0.4 s up to BACKOFF_SECONDS_MAX, and is 0.4 s again after a run of
        more than STEADY_SECONDS.
        """
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            end = self._run_once()
            if self._stopping.is_set():
                return
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            log.warning("%s", end)
            self._stopping.wait(min(BACKOFF_SECONDS_MAX, 0.2 * 2.0**failures))

    def _run_once(self) -> str:
        """Start an agent process, wait until the process ends, and return the cause of the end.

        The cause is a line for the log: the exit code with the last line of the agent's log, or why
        no process could be started. Return "" without a start if the keeper is stopping. An OSError
        of the record or of `on_start` is logged, and the process continues.
        """
        try:
            process = self._spawn()
        except OSError as error:
            return f"the agent could not be started: {error}"
        if process is None:
            return ""
        try:
            self._record(process)
        except OSError:
            log.exception("the agent's process could not be recorded")
        code = process.wait()
        return f"the agent ended with code {code}: {self._last_line()}"

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """Start an agent process, and remember the process for `stop`.

        Append the output to `agent.log`, after the rotation of a large log. The caller records the
        process and calls `on_start`. Return None without a start if the keeper is stopping. Raises
        OSError if the log cannot be opened or the process cannot be started.
        """
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
                    # A Ctrl-C in the terminal reaches only the server, which then stops the agent.
                    start_new_session=True,
                )
            self._process = process
        return process

    def _record(self, process: subprocess.Popen[bytes]) -> None:
        """Write the record `agent` with the id and the start time of the process; call `on_start`.

        Raises OSError, also that of `on_start`.
        """
        found = read_process(process.pid)
        ticks = found.started_ticks if found else 0
        self._home.write_record(RECORD, {"pid": process.pid, "started_ticks": ticks})
        self._on_start(process.pid)

    def _rotate_log(self) -> Path:
        """Return the path of the agent's log.

        Rename a log of more than LOG_BYTES_MAX to `agent.log.1` first, which replaces an older one.
        """
        path = self._home.folder / "agent.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES_MAX:
                path.replace(path.with_suffix(".log.1"))
        return path

    def _last_line(self) -> str:
        """Return the last line of the agent's log. Return "" for an empty or unreadable log.

        A log of more than LOG_BYTES_MAX is rotated first, and the result is "".
        """
        try:
            lines = self._rotate_log().read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def kill_former_agent(home: HomeFolder) -> None:
    """Kill the agent process of an earlier server, and wait up to 5 s for the exit.

    The agent's trials keep running, and the record stays. Do nothing if no agent is recorded, or if
    the recorded process has ended, even if another process has the same process id now.
    """
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
    """Return a copy of this process's environment, with `detcloud` importable.

    The parent folder of the package comes first in PYTHONPATH, before the present value.
    """
    packages = str(Path(detcloud.__file__).parents[1])
    folders = [packages, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
