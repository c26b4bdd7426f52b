"""A `ProxyCommand`: exchanges the keys with the SSH server behind a local port, then copies bytes.

Arguments: the port, the file of the public key, and the file for the host key.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from detcloud.shared.ssh_greeting import encode_request, public_key_of, read_answer

HOST_NAME = "trial"


def main() -> None:
    port, key, known_hosts = sys.argv[1:]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.sendall(encode_request(public_key_of(Path(key).read_text())))
        host_key = read_answer(connection.recv, lambda text: print(text, file=sys.stderr))
        Path(known_hosts).write_text(f"{HOST_NAME} {host_key}\n")
        threading.Thread(target=send, args=(connection,), daemon=True).start()
        while data := connection.recv(65_536):
            os.write(1, data)


def send(connection: socket.socket) -> None:
    while data := os.read(0, 65_536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
