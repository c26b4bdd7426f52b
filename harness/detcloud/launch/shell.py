"""The program of a shell on the cluster, `python -m detcloud.launch.shell`: runs shells in
terminals of their own for its user, who has the token.

It listens on this machine alone. Each connection gets a new terminal and ends with it; the program
itself runs until it is killed, with the slots of its trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import pty
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detcloud.launch.location import ADDRESS, report_location, write_location
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.shell_frames import (
    DATA,
    END,
    ERRORS,
    EXIT,
    GREETING_BYTES_MAX,
    SIZE,
    FrameReader,
    Greeting,
    pack_exit_code,
    pack_frame,
    unpack_size,
)

KIND = "shell"
SESSIONS_MAX = 32
"""Connections at the same time; further ones wait for the end of another."""
PATIENCE_SECONDS = 10
READ_BYTES = 32_768
WAITING_BYTES_MAX = 65_536
NOT_STARTED = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Accept connections until a signal ends the program."""
    if arguments if arguments is not None else sys.argv[1:]:
        print("usage: python -m detcloud.launch.shell", file=sys.stderr)
        return 2
    token = secrets.token_urlsafe(32)
    with socket.create_server((ADDRESS, 0)) as listener:
        port: int = listener.getsockname()[1]
        write_location(KIND, port=port, token=token)
        report_location(KIND, port)
        print(f"detcloud: shells start in {Path.cwd()}", flush=True)
        accept_connections(listener, token)
    return 0


def accept_connections(listener: socket.socket, token: str) -> None:
    """Serve each connection in a process of its own, for ever."""
    server = os.getpid()
    sessions = 0
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                end_with_parent(server)
                listener.close()
                os._exit(_serve_quietly(connection, token))
        sessions += 1
        while sessions:
            # Without a process that has ended, wait for one only when there are too many.
            ended, _ = os.waitpid(-1, 0 if sessions >= SESSIONS_MAX else os.WNOHANG)
            if ended == 0:
                break
            sessions -= 1


def _serve_quietly(connection: socket.socket, token: str) -> int:
    """Serve a connection; who does not keep to the protocol, or leaves, is no error of ours."""
    with contextlib.suppress(OSError, ValueError):
        serve_connection(connection, token)
    return 0


def serve_connection(connection: socket.socket, token: str) -> None:
    """Run a program for the other side, in a new terminal unless that is none itself, and tell its
    exit code.

    Raises:
        ValueError: the greeting or a frame is not one, or the token is wrong.
        OSError: the other side has left.
    """
    greeting, received = _read_greeting(connection)
    if not hmac.compare_digest(greeting.token.encode(), token.encode()):
        raise ValueError("the token is wrong")
    words = list(greeting.program) or [shutil.which("bash") or "/bin/sh"]
    try:
        program = _start_in_terminal(words, greeting) if greeting.terminal else _start_piped(words)
    except (OSError, ValueError) as error:
        code = _report_failed_start(connection, words, error)
    else:
        try:
            _pass_on(connection, program, received)
        finally:
            program.hang_up()
        code = program.wait()
    connection.sendall(pack_frame(EXIT, pack_exit_code(code)))
    _drain(connection)


def _drain(connection: socket.socket) -> None:
    """Read what nobody takes any more until the other side leaves: a connection that is closed
    before is reset, and the exit code lost.
    """
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(PATIENCE_SECONDS)
    while connection.recv(READ_BYTES):
        pass


def _read_greeting(connection: socket.socket) -> tuple[Greeting, bytes]:
    """Read the first line; with what came after it."""
    connection.settimeout(PATIENCE_SECONDS)
    received = b""
    while b"\n" not in received:
        part = connection.recv(READ_BYTES)
        if not part or len(received) > GREETING_BYTES_MAX:
            raise ValueError("there is no greeting")
        received += part
    connection.settimeout(None)
    line, _, more = received.partition(b"\n")
    return Greeting.decode(line), more


@dataclass
class Program:
    """A program that runs for a connection, and the descriptors of its input and output."""

    process: int
    input: int | None
    """None once it takes no more."""
    outputs: dict[int, bytes]
    """The kinds of frames by the descriptors that are not at their end."""
    has_terminal: bool

    def close_input(self) -> None:
        """End the input of a program without a terminal."""
        if self.input is not None and not self.has_terminal:
            os.close(self.input)
            self.input = None

    def hang_up(self) -> None:
        """Close what is still open, as the window of a terminal that is closed."""
        if self.outputs and not self.has_terminal:
            with contextlib.suppress(OSError):
                os.killpg(self.process, signal.SIGHUP)
        for descriptor in {*self.outputs, self.input} - {None}:
            assert descriptor is not None
            os.close(descriptor)

    def wait(self) -> int:
        """Wait for the end, and return the exit code as shells have it."""
        _, status = os.waitpid(self.process, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _start_in_terminal(words: list[str], greeting: Greeting) -> Program:
    """Start a program in a new terminal."""
    environment = {**os.environ, "TERM": greeting.terminal}
    process, terminal = pty.fork()
    if process == 0:
        _restore_signals()
        try:
            os.execvpe(words[0], words, environment)
        except (OSError, ValueError) as error:
            os.write(2, f"{_failed_start(words, error)}\n".encode())
        os._exit(NOT_STARTED)
    os.set_blocking(terminal, False)
    _resize(terminal, greeting.rows, greeting.columns)
    return Program(process, terminal, {terminal: DATA}, has_terminal=True)


def _restore_signals() -> None:
    """Let every signal do again what it does by default: an agent that a script started in the
    background ignores Ctrl-C, which its programs would inherit, and Python ignores closed pipes.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _start_piped(words: list[str]) -> Program:
    """Start a program that reads and writes pipes.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        words,
        bufsize=0,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        preexec_fn=_restore_signals,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stderr is not None
    source, output, errors = (
        os.dup(file.fileno()) for file in (started.stdin, started.stdout, started.stderr)
    )
    for file in (started.stdin, started.stdout, started.stderr):
        file.close()
    os.set_blocking(source, False)
    # The process is waited for by its id.
    started.returncode = 0
    return Program(started.pid, source, {output: DATA, errors: ERRORS}, has_terminal=False)


def _report_failed_start(connection: socket.socket, words: list[str], error: Exception) -> int:
    text = f"{_failed_start(words, error)}\n"
    connection.sendall(pack_frame(ERRORS, text.encode()))
    return NOT_STARTED


def _failed_start(words: list[str], error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"detcloud: {words[0]!r:.200} cannot be started: {reason}"


def _resize(terminal: int, rows: int, columns: int) -> None:
    if rows and columns:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _pass_on(connection: socket.socket, program: Program, received: bytes) -> None:
    """Pass on input and output until the program has closed its output.

    Input that the program does not take waits here, and more of it in the connection, so that its
    output is read in the meantime.

    OSError: the other side has left.
    """
    reader, source, waiting, is_over = FrameReader(), connection.fileno(), b"", False
    while program.outputs:
        for kind, payload in reader.feed(received):
            if kind == SIZE and program.has_terminal and program.input is not None:
                _resize(program.input, *unpack_size(payload))
            waiting += payload if kind == DATA and program.input is not None else b""
            is_over = is_over or kind == END
        if is_over and not waiting:
            program.close_input()
        received = b""
        sources = [*program.outputs, *([source] if len(waiting) <= WAITING_BYTES_MAX else [])]
        sinks = [program.input] if waiting and program.input is not None else []
        readable, writable, _ = select.select(sources, sinks, [])
        if writable:
            waiting = _write_input(program, waiting)
        for descriptor in set(readable) & set(program.outputs):
            _send_output(connection, program, descriptor)
        if source in readable:
            received = connection.recv(READ_BYTES)
            if not received:
                raise OSError("the other side has left")


def _write_input(program: Program, waiting: bytes) -> bytes:
    """Write what the program takes now, and return the rest; nothing once it takes no more."""
    assert program.input is not None
    try:
        return waiting[os.write(program.input, waiting[:READ_BYTES]) :]
    except BlockingIOError:
        return waiting
    except OSError:
        program.close_input()
        return b""


def _send_output(connection: socket.socket, program: Program, descriptor: int) -> None:
    """Send what the program printed; at its end, which Linux reports as an error of a terminal, the
    descriptor is closed.
    """
    try:
        output = os.read(descriptor, READ_BYTES)
    except OSError:
        output = b""
    if output:
        connection.sendall(pack_frame(program.outputs[descriptor], output))
        return
    del program.outputs[descriptor]
    if descriptor != program.input:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
