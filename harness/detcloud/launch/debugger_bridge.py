"""A connection of a user's debugger, `python -m detcloud.launch.debugger_bridge`.

The agent starts the module in the allocation, and stdin and stdout lead to the user's machine. The
messages of both sides are those of the Debug Adapter Protocol, and pass unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import IO, Any

from detcloud.launch.spawned_connection import take_connection
from detcloud.shared.debugger_place import connect_debugger

MESSAGE_BYTES_MAX = 16 << 20
HEADER_BYTES_MAX = 1_024
_READ_BYTES = 65_536
_LENGTH = b"content-length"
_DISCONNECT = {
    "seq": 1 << 30,
    "type": "request",
    "command": "disconnect",
    "arguments": {"terminateDebuggee": False},
}
_NOT_THERE = (
    "The trial accepts no debugger now: its training program has not begun to wait, or has ended."
)


def main() -> int:
    """Carry messages until either side ends. Return 0, or 1 if the trial accepts no debugger."""
    with take_connection() as user:
        return serve(user, Path(os.environ["HOME"]))


def serve(user: socket.socket, home: Path) -> int:
    """Carry messages between a user and the debugger of the trial with this home.

    When the user's side ends without a request to disconnect, such a request is sent, so that the
    trial does not stay at a breakpoint. Return 1, after a message to the user, if the trial accepts
    no debugger.
    """
    try:
        trial = connect_debugger(home)
    except OSError:
        text = {"category": "important", "output": f"{_NOT_THERE}\n"}
        event = {"seq": 1, "type": "event", "event": "output", "body": text}
        with contextlib.suppress(OSError):
            user.sendall(pack_message(event))
        return 1
    with trial:
        threading.Thread(target=_send_requests, args=(user, trial), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := trial.recv(_READ_BYTES):
                user.sendall(data)
    return 0


def pack_message(message: dict[str, Any]) -> bytes:
    """Return a message of the protocol, with a header."""
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def read_message(stream: IO[bytes]) -> bytes:
    """Return the next whole message with the header. b"" at the end, and for an invalid header."""
    header, length = b"", None
    while line := stream.readline(HEADER_BYTES_MAX):
        header += line
        name, _, value = line.partition(b":")
        if name.strip().lower() == _LENGTH and value.strip().isdigit():
            length = int(value)
        if line == b"\r\n":
            break
        if len(header) > HEADER_BYTES_MAX:
            return b""
    if length is None or length > MESSAGE_BYTES_MAX:
        return b""
    body = stream.read(length)
    return header + body if len(body) == length else b""


def _send_requests(user: socket.socket, trial: socket.socket) -> None:
    """Pass whole messages of the user on until the end, then disconnect the debugger."""
    with contextlib.suppress(OSError):
        with user.makefile("rb") as stream, contextlib.suppress(ConnectionError):
            while message := read_message(stream):
                trial.sendall(message)
        trial.sendall(pack_message(_DISCONNECT))
    with contextlib.suppress(OSError):
        # Also ends the other direction, because the debugger would leave the connection open.
        trial.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main())
