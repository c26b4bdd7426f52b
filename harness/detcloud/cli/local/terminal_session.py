"""The local terminal as the window of a shell on the cluster."""

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
    """Connect this terminal to a shell on this machine until the shell ends, and return the exit
    code of the shell or program.

    The session has no time limit. Output is written to stdout and stderr of this process. On a
    terminal, every key is sent, Ctrl-C included, and the terminal's settings are restored at the
    end. Return None if the connection broke. If stdin is not a terminal, the shell gets no terminal
    either, and stdin is passed on up to its end.

    Args:
        port: the port on 127.0.0.1 at which the shell listens.
        token: the secret that the shell expects in the greeting.
        program: the program to run in place of a shell, or an empty sequence.

    Raises:
        DetcloudError: the port refuses connections.
        OSError: stdout or stderr cannot be written.
    """
    terminal = os.environ.get("TERM") or "dumb" if sys.stdin.isatty() else ""
    greeting = Greeting(token, terminal, *_window_size(), tuple(program))
    try:
        connection = socket.create_connection((ADDRESS, port))
    except OSError as error:
        raise DetcloudError(
            f"no shell listens on port {port} of this machine: {error.strerror}; "
            "`detcloud shell list` shows the running shells"
        ) from None
    with connection, _raw_input(), _window_changes() as changes:
        return _exchange(connection, greeting.encode(), changes)


def _exchange(connection: socket.socket, waiting: bytes, changes: int) -> int | None:
    """Pass on input and output until the shell ends. Return the shell's exit code, or None if the
    connection broke.

    The wait has no limit. At the end of stdin, the shell is told once, and output is still passed
    on. Changes of the window's size are sent. Reading of stdin pauses while WAITING_BYTES_MAX bytes
    are unsent.

    Args:
        waiting: bytes to send first.
        changes: a file descriptor that becomes readable when the size of the window changes.

    Raises:
        OSError: stdout or stderr cannot be written.
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
        # Keys that were typed after a change of the window must arrive after the new size. The
        # signal may have come after `select` looked at `changes`.
        if _has_changed(changes):
            waiting += pack_frame(SIZE, pack_size(*_window_size()))
        if sys.stdin.fileno() in readable:
            typed = os.read(sys.stdin.fileno(), READ_BYTES)
            waiting += pack_frame(DATA, typed) if typed else pack_frame(END)
            inputs = inputs if typed else [changes]


def _has_changed(changes: int) -> bool:
    """Return whether the size of the window has changed since the last call."""
    try:
        return bool(os.read(changes, READ_BYTES))
    except BlockingIOError:
        return False


def _window_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal of stdin, or zeros without a terminal."""
    try:
        size = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return 0, 0
    return size.lines, size.columns


def _write_all(descriptor: int, payload: bytes) -> None:
    """Write all bytes to a file descriptor, in several writes if needed.

    Raises:
        OSError: the descriptor cannot be written.
    """
    while payload:
        payload = payload[os.write(descriptor, payload) :]


@contextlib.contextmanager
def _raw_input() -> Iterator[None]:
    """Put the terminal into raw mode during the block, so that every key, Ctrl-C included, is sent.
    Restore the settings at the end.

    Do nothing if stdin is not a terminal.
    """
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
    """Provide a file descriptor that becomes readable when the size of the window changes.

    Reading from the descriptor does not block. The handler of SIGWINCH is replaced during the
    block. At the end, the former handler is restored and the descriptor is closed.
    """
    readable, writable = os.pipe()
    for descriptor in (readable, writable):
        os.set_blocking(descriptor, False)

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
