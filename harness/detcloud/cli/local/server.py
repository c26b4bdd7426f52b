"""The embedded cluster's server: code, start and stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import detcloud
from detcloud.client.home import Home, ServerRecord
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Transport, Unreachable
from detcloud.shared.processes import Process, is_alive, list_descendants, read_process

LOG_TAIL_LINES = 20
# local_cluster/__main__.py reads this variable.
STATE_VARIABLE = "DETCLOUD_STATE"
# Packages of the [server] extra, which the command line never imports.
SERVER_PACKAGES = ("fastapi", "uvicorn", "pydantic", "yaml")


class ServerPatience(NamedTuple):
    """The longest waits for a local cluster's server, in seconds."""

    start: float = 30.0
    """The wait for the first answer of a started server, and for the answer of a running server."""
    stop: float = 20.0
    """The wait for the end of the server after SIGTERM."""
    kill: float = 5.0
    """The wait for the end of the server after SIGKILL, and each wait for its child processes."""


PATIENCE = ServerPatience()


def server_path(packages: Iterable[str] = SERVER_PACKAGES) -> Path:
    """Return the folder with the server's packages: a folder in the wheel, or the root of a
    checkout. The packages of the extra [server] are searched, but not imported.

    Raises:
        DetcloudError: the server or a package of the extra [server] is not installed.
    """
    package = Path(detcloud.__file__).parent
    for folder in (package / "_server", package.parents[1]):
        if (folder / "control_plane").is_dir() and (folder / "local_cluster").is_dir():
            break
    else:
        raise DetcloudError("the server is not installed; pip install 'detcloud[server]'")
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise DetcloudError(
            f"the server needs {', '.join(missing)}; pip install 'detcloud[server]'"
        )
    return folder


def server_environment(state: str | None = None) -> dict[str, str]:
    """Return the environment for a child process that imports the server and `detcloud`.

    The environment of this process is copied, and the folders of both come first in PYTHONPATH. The
    environment of this process is not changed.

    Args:
        state: the place of the state, for a server that starts. The URL may have a password, which
            arguments would show to all users of the machine.

    Raises:
        DetcloudError: the server or a package of the extra [server] is not installed.
    """
    package_parent = Path(detcloud.__file__).parents[1]
    folders = [str(server_path()), str(package_parent), os.environ.get("PYTHONPATH", "")]
    chosen = {} if state is None else {STATE_VARIABLE: state}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **chosen}


@dataclass(frozen=True)
class ServerChoices:
    """The settings of a new server. A setting that is None is left to the server."""

    slots: int | None = None
    """The number of slots."""
    port: int | None = None
    """The port to listen on."""
    config: Path | None = None
    """A cluster configuration that applies from the start."""
    files: str | None = None
    """The absolute path of the folder of objects and checkpoints, or the address of a bucket."""
    files_credentials: Path | None = None
    """The file with the credentials for the bucket."""
    clouds: str | None = None
    """The absolute path of a file with remote accounts, or `none` to remove the accounts."""


DEFAULTS = ServerChoices()


def server_command(home: Home, choices: ServerChoices) -> list[str]:
    """Return the command that runs the server in the foreground. Nothing is started.

    Paths become absolute.
    """
    slots, port, config, files = choices.slots, choices.port, choices.config, choices.files
    # -P keeps the working folder, which may hold a module of any name, out of the imports.
    command = [sys.executable, "-P", "-m", "local_cluster", "--home", str(home.folder)]
    command += ["--slots", str(slots)] if slots is not None else []
    command += ["--config", str(config.absolute())] if config is not None else []
    command += ["--files", files] if files is not None else []
    credentials = choices.files_credentials
    command += ["--files-credentials", str(credentials)] if credentials is not None else []
    command += ["--clouds", choices.clouds] if choices.clouds is not None else []
    return command + (["--port", str(port)] if port is not None else [])


def start_server(
    home: Home,
    choices: ServerChoices = DEFAULTS,
    *,
    state: str | None = None,
    on_wait: Callable[[float], None] = lambda seconds: None,
    patience: ServerPatience = PATIENCE,
) -> ServerRecord:
    """Start the server unless already started, wait for an answer, and return the server's record.

    The home folder is created if needed, and the server's log is appended to. A lock in the home
    folder makes concurrent starts wait for each other without a time limit. A running server is
    returned unchanged: the settings are then ignored. The new server outlives this
    process. A new server that does not answer is killed, and also on Ctrl-C.

    Args:
        choices: the settings of a new server.
        state: the place of the state; None for the present place.
        on_wait: called repeatedly with the seconds waited so far.
        patience: the longest waits.

    Raises:
        DetcloudError: the server is not installed, the home folder cannot be used, or a running
            server neither answers nor ends. Or the new server ended or did not answer in time; the
            message then quotes the end of its log.
    """
    environment = server_environment(state)
    home.create_folder()
    with home.hold_lock():
        running = home.running_server_under_lock()
        if running is not None and _keeps_running(home, running, patience.start):
            return running
        # The record of a killed server stays until the next server removes the record.
        former = home.last_record()
        with home.log.open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                server_command(home, choices),
                env=environment,
                cwd=home.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            return _wait_for_answer(home, process, log_start, former, on_wait, patience.start)
        except BaseException:
            _kill_failed_start(process, patience.kill)
            raise


def find_answering_server(home: Home, patience: ServerPatience = PATIENCE) -> ServerRecord | None:
    """Wait until the running server answers, and return its record.

    Return None if no server runs, or if the server ends meanwhile.

    Raises:
        DetcloudError: the server neither answers nor ends within `patience.start`.
    """
    if not home.folder.is_dir():
        return None
    with home.hold_lock(shared=True):
        running = home.running_server_under_lock()
        if running is not None and _keeps_running(home, running, patience.start):
            return running
    return None


def stop_server(home: Home, patience: ServerPatience = PATIENCE) -> bool:
    """Stop the server and all child processes, and return True. Return False if no server was
    running.

    The lock of the home folder is waited for without a time limit. Processes that do not end after
    SIGTERM are killed: the server after `patience.stop`, its children `patience.kill` later. Return
    True even if a process survives SIGKILL.

    Raises:
        PermissionError: a process belongs to another user.
        OSError: the lock file of the home folder cannot be opened.
    """
    if not home.folder.is_dir():
        return False
    with home.hold_lock():
        record = home.running_server_under_lock()
        if record is None:
            return False
        # Wait for the server process too: a server removes the record shortly before exiting.
        server = read_process(record.pid)
        started = [*([server] if server else []), *list_descendants(record.pid)]
        _send_signal(record.pid, signal.SIGTERM)
        if not _wait_until(patience.stop, lambda: home.running_server_under_lock() is None):
            started += [child for child in list_descendants(record.pid) if child not in started]
            _send_signal(record.pid, signal.SIGKILL)
            _wait_until(patience.kill, lambda: home.running_server_under_lock() is None)
        _end_all(started, patience.kill)
    return True


def _wait_for_answer(
    home: Home,
    process: subprocess.Popen[bytes],
    log_start: int,
    former: ServerRecord | None,
    on_wait: Callable[[float], None],
    seconds_max: float,
) -> ServerRecord:
    """Wait at most `seconds_max` until a new server answers, and return the server's record. The
    server is not killed after an error.

    Args:
        process: the process of the new server.
        log_start: the size of the log before the start. An error quotes the log from there on.
        former: the record of an earlier server, or None. A record equal to `former` is ignored.
        on_wait: called repeatedly with the seconds waited so far.

    Raises:
        DetcloudError: the server ended or did not answer in time. The message quotes the end of the
            log.
    """
    started = time.monotonic()
    while (waited := time.monotonic() - started) < seconds_max:
        record = home.running_server_under_lock()
        if record is not None and record != former and _answers(record.url, "/api/v1/health"):
            # The server outlives this command. Without a return code, Popen would warn about that.
            process.returncode = 0
            return record
        if process.poll() is not None:
            raise _start_error(home, f"ended with code {process.returncode}", log_start)
        on_wait(waited)
        time.sleep(0.03)
    raise _start_error(home, f"did not answer within {seconds_max:.0f} s", log_start)


def _keeps_running(home: Home, record: ServerRecord, seconds_max: float) -> bool:
    """Wait until the server that holds the lock answers or ends; return True for an answer, False
    for an end.

    A killed server holds the lock until the system has removed the process. The wait has the limit
    `seconds_max`.

    Raises:
        DetcloudError: the server neither answered nor ended in time.
    """
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if _answers(record.url, "/api/v1/whoami", _read_token(home)):
            return True
        if home.running_server_under_lock() is None:
            return False
        time.sleep(0.03)
    raise DetcloudError(
        f"the local cluster's server (pid {record.pid}) does not answer; "
        "`detcloud down` stops the server, and `detcloud up` starts another one"
    )


def _read_token(home: Home) -> str | None:
    """Return the token of the cluster's user, which other clusters refuse. None if no token is
    stored or readable.
    """
    try:
        return home.token()
    except DetcloudError:
        return None


def _start_error(home: Home, what: str, log_start: int) -> DetcloudError:
    """Return an error with the last LOG_TAIL_LINES lines of the log, from the byte `log_start` on.
    The log file is read.

    Args:
        what: the failure, such as `ended with code 1`.
    """
    with home.log.open("rb") as log:
        log.seek(log_start)
        lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    tail = "\n".join(f"  {line}" for line in lines)
    return DetcloudError(f"the local cluster's server {what}; {home.log} ends with:\n{tail}")


def _answers(url: str, path: str, token: str | None = None) -> bool:
    """Return whether the server answers a GET request with success within two seconds. The request
    is not repeated. All errors of the request give False.

    Args:
        token: the token to send; None for a request without a token.
    """
    client = Transport(url, token, timeout_seconds=2.0, attempts_max=1)
    try:
        client.request("GET", path)
    except (ApiError, Unreachable):
        return False
    finally:
        client.close()
    return True


def _kill_failed_start(process: subprocess.Popen[bytes], seconds_max: float) -> None:
    """Kill the process group of a started server that still runs, and all descendants. Do nothing
    if the server has ended.

    Wait until the server has ended, and for the descendants as `_end_all` does.
    """
    if process.poll() is None:
        started = list_descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _end_all(started, seconds_max)


def _end_all(processes: list[Process], seconds_max: float) -> None:
    """Wait for the processes of a stopped server to end, then send SIGKILL to remaining processes
    and wait again. Each of the two waits has the limit `seconds_max`. A process that survives is
    left.

    Raises:
        PermissionError: a remaining process belongs to another user.
    """

    def have_ended() -> bool:
        return not any(map(is_alive, processes))

    if not _wait_until(seconds_max, have_ended):
        for process in filter(is_alive, processes):
            _send_signal(process.pid, signal.SIGKILL)
        _wait_until(seconds_max, have_ended)


def _wait_until(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait at most `seconds` for a condition, and return whether the condition became true. The
    condition is checked repeatedly, at least once.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _send_signal(pid: int, number: int) -> None:
    """Send a signal to a process. Do nothing if the process has ended.

    Raises:
        PermissionError: the process belongs to another user.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
