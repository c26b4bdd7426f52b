"""Commands in containers, with a socket of this process as input and output."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from detcloud.agent.docker.engine import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from detcloud.agent.docker.engine import EngineClient

READ_BYTES = 65_536
_HEAD_BYTES = 8
_OUTPUT = 1


class OutputFrames:
    """A parser of the frames in which the engine sends the output of a command.

    A frame has a head of eight bytes: the number of the stream, three zeros, and the length.
    """

    def __init__(self) -> None:
        self._head = b""
        self._stream = 0
        self._left = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Yield the parts of the standard output in received bytes. Drop the standard error."""
        start = 0
        while start < len(received):
            if not self._left:
                missing = _HEAD_BYTES - len(self._head)
                self._head += received[start : start + missing]
                start += missing
                if len(self._head) == _HEAD_BYTES:
                    self._stream = self._head[0]
                    self._left = int.from_bytes(self._head[4:], "big")
                    self._head = b""
                continue
            part = received[start : start + self._left]
            start += len(part)
            self._left -= len(part)
            if self._stream == _OUTPUT:
                yield part


def start_module(
    engine: EngineClient, container: str, command: Sequence[str], log_line: Callable[[str], None]
) -> socket.socket:
    """Start a command in a container. Return at once a socket with the input and output.

    A thread sends the requests and passes on the output, another passes on the input. If the
    command cannot be started, write the reason to the agent's log, and end the socket.
    """
    served, program = socket.socketpair()

    def run() -> None:
        with program:
            try:
                channel, first = engine.start_exec(engine.create_exec(container, command))
            except (EngineUnavailable, EngineError) as error:
                log_line(f"{command[-1]} could not be started in {container}: {error}")
                return
            with channel:
                _pass_on(program, channel, first)

    threading.Thread(target=run, name=f"{command[-1]} {container}", daemon=True).start()
    return served


def _pass_on(program: socket.socket, channel: socket.socket, first: bytes) -> None:
    """Copy bytes between the program's socket and the command, until the command has ended."""

    def pass_input() -> None:
        with contextlib.suppress(OSError):
            while data := program.recv(READ_BYTES):
                channel.sendall(data)
            channel.shutdown(socket.SHUT_WR)

    threading.Thread(target=pass_input, name="input of a command", daemon=True).start()
    frames = OutputFrames()
    received = first
    with contextlib.suppress(OSError):
        while True:
            for part in frames.feed(received):
                program.sendall(part)
            received = channel.recv(READ_BYTES)
            if not received:
                break
    # The other thread may wait for input of the user's end.
    with contextlib.suppress(OSError):
        program.shutdown(socket.SHUT_RDWR)
