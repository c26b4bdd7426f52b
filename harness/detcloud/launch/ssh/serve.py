"""The SSH server of a connection, `python -m detcloud.launch.ssh.serve`.

Stdin and stdout are the connection, so that no port listens. The server runs in the allocation: as
the trial's user, with the trial's variables and working directory. It accepts only the key that the
first line of the connection names (`detcloud.shared.ssh_greeting`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from detcloud.launch.spawned_connection import take_connection
from detcloud.launch.ssh.packages import ASYNCSSH, INSTALLING
from detcloud.shared.ssh_greeting import (
    GreetingFailed,
    encode_error,
    encode_host_key,
    encode_notice,
    read_request,
)
from detcloud.shared.trial_packages import PackageMissing

FOLDER = ".detcloud-ssh"
"""The folder of the server in the trial's home."""
HOST_KEY_FILE = "host_key"


def main() -> int:
    """Serve a connection. Return 0, or 1 without a valid first line or a server."""
    with take_connection() as connection:
        return serve(connection)


def serve(connection: socket.socket) -> int:
    """Exchange the keys, and serve SSH until the connection ends. Return the exit code."""
    try:
        public_key = read_request(connection.recv)
        folder = Path(os.environ["HOME"]) / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        ASYNCSSH.obtain(folder, lambda: connection.sendall(encode_notice(INSTALLING)))
        # Imported after the installation of the package that it uses.
        from detcloud.launch.ssh.server import load_or_create_host_key, serve_connection

        host_key = load_or_create_host_key(folder / HOST_KEY_FILE)
        connection.sendall(encode_host_key(host_key.public))
    except (GreetingFailed, PackageMissing, KeyError, OSError, ImportError, ValueError) as error:
        text = str(error) if isinstance(error, PackageMissing) else f"no SSH server: {error!r}"
        with contextlib.suppress(OSError):
            connection.sendall(encode_error(text))
        return 1
    serve_connection(connection, host_key, public_key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
