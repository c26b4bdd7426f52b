"""The program of a notebook, `python -m detcloud.launch.notebook`: runs JupyterLab for the user.

The server listens only on this machine and requires a token, which is neither printed nor reported.
The address and the token are in a file that only the trial's user can read. The file's place is
reported after the server has begun to listen.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import FrameType

from detcloud.launch.kept_folder import serve_kept
from detcloud.launch.location import ADDRESS, report_location, write_location
from detcloud.shared.parent_death import end_with_parent

KIND = "notebook"
IDLE_TYPES = ("kernels_or_terminals", "kernel_connections", "activity")
POLL_SECONDS = 0.2
MISSING = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Run JupyterLab until the server ends or is stopped, and return the exit code.

    Write the location file with address and token, and report its place after the server listens.
    The files of the working directory are restored and saved as `serve_kept` does. Return 128 + n
    after signal n, and 127 without an installed JupyterLab. `arguments` defaults to the command
    line; invalid arguments exit with 2. Raises OSError if the server cannot be started or the file
    cannot be written, and DetcloudError if the report fails.
    """
    parser = argparse.ArgumentParser(prog="python -m detcloud.launch.notebook")
    parser.add_argument("--idle-timeout", type=int, metavar="SECONDS")
    parser.add_argument("--idle-type", choices=IDLE_TYPES, default=IDLE_TYPES[0])
    options = parser.parse_args(arguments)
    if find_spec("jupyterlab") is None:
        print(
            f"detcloud: JupyterLab is not installed for {sys.executable}, which runs this notebook:"
            f" install it with `{sys.executable} -m pip install jupyterlab`, or use an image that"
            " has it (environment.image), or add `--config 'environment.pip=[jupyterlab]'`",
            file=sys.stderr,
        )
        return MISSING
    return serve_kept(lambda: _serve(options.idle_timeout, options.idle_type))


def _serve(idle_seconds: int | None, idle_type: str) -> int:
    """Run JupyterLab until the server ends or is stopped, and return the exit code.

    Raises OSError if the server cannot be started or the location file cannot be written, and
    DetcloudError if the report fails.
    """
    port, token = _find_free_port(), secrets.token_urlsafe(32)
    server = _start_server(server_options(port, idle_seconds, idle_type), token)
    write_location(KIND, url=f"http://{ADDRESS}:{port}/lab?token={token}")
    if _is_listening(server, port):
        report_location(KIND, port)
    code = server.wait()
    return code if code >= 0 else 128 - code


def server_options(port: int, idle_seconds: int | None, idle_type: str) -> list[str]:
    """Return JupyterLab's options for this port and for the end after `idle_seconds` without use.

    `idle_seconds` of None means no end. `idle_type` defines use: running kernels or terminals,
    connections to kernels, or activity.
    """
    options = [
        "--no-browser",
        f"--ServerApp.ip={ADDRESS}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.root_dir=.",
    ]
    if os.geteuid() == 0:
        options.append("--ServerApp.allow_root=True")
    if idle_seconds is None:
        return options
    # The server ends only after all kernels and terminals have ended.
    options.append(f"--ServerApp.shutdown_no_activity_timeout={idle_seconds}")
    if idle_type == "kernels_or_terminals":
        return options
    options += [
        f"--MappingKernelManager.cull_idle_timeout={idle_seconds}",
        f"--MappingKernelManager.cull_connected={idle_type == 'activity'}",
        f"--TerminalManager.cull_inactive_timeout={idle_seconds}",
    ]
    return options


def _find_free_port() -> int:
    """Return a port of the loopback address that is free now, and do not reserve the port."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        port: int = listener.getsockname()[1]
        return port


def _start_server(options: list[str], token: str) -> subprocess.Popen[bytes]:
    """Start JupyterLab, and forward this process's SIGTERM to the server.

    The kernel kills the server if this process dies. Because the token is set, JupyterLab prints no
    token. Raises OSError.
    """
    environment: Mapping[str, str] = {**os.environ, "JUPYTER_TOKEN": token}
    wrapper = os.getpid()
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=environment,
        preexec_fn=lambda: end_with_parent(wrapper),
    )

    def pass_on(number: int, _frame: FrameType | None) -> None:
        server.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    return server


def _is_listening(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server accepts connections. Return False if the server ends before that."""
    while server.poll() is None:
        try:
            with socket.create_connection((ADDRESS, port), timeout=1):
                return True
        except OSError:
            time.sleep(POLL_SECONDS)
    return False


if __name__ == "__main__":
    sys.exit(main())
