"""A terminal of this machine as the window of a shell on the cluster."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType

from detcloud.shared.errors import DetcloudError
from detcloud.shared.shell_frames import (
    DATA,
    END,
    ERRORS,
    EXIT,
    SIZE,
    FrameReader,
    Greeting,
    pack_frame,
    pack_size,
    unpack_exit_code,
)

ADDRESS = "127.0.0.1"
READ_BYTES = 32_768
WAITING_BYTES_MAX = 65_536


def run_session(port: int, token: str, program: Sequence[str]) -> int | None:
    """Show a shell, or the program, in this terminal until it ends, and return its exit code; None
    when the connection ended before.

    Where the input is no terminal, the program has none either, and the input is passed on to its
    end.

    Raises:
        DetcloudError: nothing listens at the port.
    """
    terminal = os.environ.get("TERM") or "dumb" if sys.stdin.isatty() else ""
    greeting = Greeting(token, terminal, *_window_size(), tuple(program))
    try:
        connection = socket.create_connection((ADDRESS, port))
    except OSError as error:
        raise DetcloudError(
            f"nothing listens on port {port} of this machine any more: {error.strerror}; "
            "`detcloud shell list` shows which shells run"
        ) from None
    with connection, _raw_input(), _window_changes() as changes:
        return _exchange(connection, greeting.encode(), changes)


def _exchange(connection: socket.socket, waiting: bytes, changes: int) -> int | None:
    """Pass on input and output; `waiting` is sent first, and `changes` becomes readable when the
    window has another size.
    """
    connection.setblocking(False)
    reader, source = FrameReader(), connection.fileno()
    inputs = [changes, sys.stdin.fileno()]
    while True:
        taken = inputs if len(waiting) < WAITING_BYTES_MAX else [changes]
        readable, writable, _ = select.select([source, *taken], [source] if waiting else [], [])
        try:
            if writable:
                waiting = waiting[connection.send(waiting) :]
            received = connection.recv(READ_BYTES) if source in readable else None
        except OSError:
            return None
        if received is not None:
            for kind, payload in reader.feed(received):
                if kind == EXIT:
                    return unpack_exit_code(payload)
                _write_all(sys.stderr.fileno() if kind == ERRORS else sys.stdout.fileno(), payload)
            if not received:
                return None
        if changes in readable:
            os.read(changes, READ_BYTES)
            waiting += pack_frame(SIZE, pack_size(*_window_size()))
        if sys.stdin.fileno() in readable:
            typed = os.read(sys.stdin.fileno(), READ_BYTES)
            waiting += pack_frame(DATA, typed) if typed else pack_frame(END)
            inputs = inputs if typed else [changes]


def _window_size() -> tuple[int, int]:
    """The rows and columns of this terminal; zeros for none."""
    try:
        size = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return 0, 0
    return size.lines, size.columns


def _write_all(descriptor: int, payload: bytes) -> None:
    while payload:
        payload = payload[os.write(descriptor, payload) :]


@contextlib.contextmanager
def _raw_input() -> Iterator[None]:
    """Hand on every key, Ctrl-C too, while the shell is shown."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield
        return
    settings = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)


@contextlib.contextmanager
def _window_changes() -> Iterator[int]:
    """A descriptor that becomes readable when the window has another size."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def note(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writable, b"w")

    former = signal.signal(signal.SIGWINCH, note)
    try:
        yield readable
    finally:
        signal.signal(signal.SIGWINCH, former)
        os.close(readable)
        os.close(writable)
