"""The program of a notebook, `python -m detcloud.launch.notebook`: runs JupyterLab for its user.

The server listens on this machine alone and asks for a token, which nothing prints or reports. A
file of the trial that only its user can read has it, with the address; the file's place is reported
once the server listens.
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

from detcloud.launch.location import ADDRESS, report_location, write_location
from detcloud.shared.parent_death import end_with_parent

KIND = "notebook"
IDLE_TYPES = ("kernels_or_terminals", "kernel_connections", "activity")
POLL_SECONDS = 0.2
MISSING = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it ends or is stopped; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m detcloud.launch.notebook")
    parser.add_argument("--idle-timeout", type=int, metavar="SECONDS")
    parser.add_argument("--idle-type", choices=IDLE_TYPES, default=IDLE_TYPES[0])
    options = parser.parse_args(arguments)
    if find_spec("jupyterlab") is None:
        print(
            f"detcloud: JupyterLab is not installed for {sys.executable}, which runs this notebook:"
            f" install it with `{sys.executable} -m pip install jupyterlab`, or use an image that"
            " has it (environment.image)",
            file=sys.stderr,
        )
        return MISSING
    port, token = _find_free_port(), secrets.token_urlsafe(32)
    server = _start_server(server_options(port, options.idle_timeout, options.idle_type), token)
    write_location(KIND, url=f"http://{ADDRESS}:{port}/lab?token={token}")
    if _is_listening(server, port):
        report_location(KIND, port)
    code = server.wait()
    return code if code >= 0 else 128 - code


def server_options(port: int, idle_seconds: int | None, idle_type: str) -> list[str]:
    """The options of JupyterLab for this port, and for its end when nobody has used it for long."""
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
    # The server ends by itself only once no kernel and no terminal is left.
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
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        port: int = listener.getsockname()[1]
        return port


def _start_server(options: list[str], token: str) -> subprocess.Popen[bytes]:
    """Start JupyterLab; with a token of its environment it prints none."""
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
    """Wait until the server accepts connections; False when it ended before."""
    while server.poll() is None:
        try:
            with socket.create_connection((ADDRESS, port), timeout=1):
                return True
        except OSError:
            time.sleep(POLL_SECONDS)
    return False


if __name__ == "__main__":
    sys.exit(main())
