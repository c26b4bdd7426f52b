"""The SSH server of a connection, `python -m detcloud.launch.ssh.serve`.

Stdin and stdout are the connection, so that no port listens. The server runs in the allocation: as
the trial's user, with the trial's variables and working directory. It accepts only the key that the
first line of the connection names (`detcloud.shared.ssh_greeting`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from pathlib import Path

from detcloud.launch.ssh.packages import PackageMissing, obtain_package
from detcloud.shared.ssh_greeting import (
    GreetingFailed,
    encode_error,
    encode_host_key,
    encode_notice,
    read_request,
)

FOLDER = ".detcloud-ssh"
"""The folder of the server in the trial's home."""
HOST_KEY_FILE = "host_key"
_READ_BYTES = 65_536


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
        obtain_package(folder, lambda text: connection.sendall(encode_notice(text)))
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


def take_connection() -> socket.socket:
    """Return the connection, and replace stdin and stdout by the null device.

    Nothing that is printed can then get between the bytes of SSH. Container engines pass pipes:
    threads copy the bytes of pipes from and to the returned socket.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if stat.S_ISSOCK(os.fstat(source).st_mode):
        os.close(sink)
        return socket.socket(fileno=source)
    connection, inner = socket.socketpair()
    threading.Thread(target=_copy_input, args=(source, inner), daemon=True).start()
    # Not a daemon: the process ends after the last byte was written.
    threading.Thread(target=_copy_output, args=(inner, sink)).start()
    return connection


def _copy_input(source: int, inner: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(source, _READ_BYTES):
            inner.sendall(data)
        inner.shutdown(socket.SHUT_WR)


def _copy_output(inner: socket.socket, sink: int) -> None:
    with contextlib.suppress(OSError):
        while data := inner.recv(_READ_BYTES):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(sink, rest) :]
    os.close(sink)


if __name__ == "__main__":
    sys.exit(main())
