"""The program of a shell on the cluster, `python -m detcloud.launch.shell`.

The program listens only on this machine. A client that sends the token gets a shell in a new
terminal, which ends with the connection. The program itself runs, with the slots of its trial,
until it is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from detcloud.launch.greetings import GreetedConnection, Lobby
from detcloud.launch.kept_folder import serve_kept
from detcloud.launch.location import ADDRESS, report_location, write_location
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.shell_frames import (
    DATA,
    END,
    ERRORS,
    EXIT,
    SIZE,
    FrameReader,
    Greeting,
    pack_exit_code,
    pack_frame,
    unpack_size,
)
from detcloud.shared.use_mark import UseMark

KIND = "shell"
SESSIONS_MAX = 32
"""The maximum number of connections with the token. Connections above the maximum wait."""
REAPING_SECONDS = 0.1
"""The interval between checks for ended processes, because select does not report their end."""
PATIENCE_SECONDS = 10
READ_BYTES = 32_768
WAITING_BYTES_MAX = 65_536
NOT_STARTED = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Accept connections until a signal ends the program. Return 2 if arguments are given.

    Listen on a free port of this machine, write the location file with port and token, and report
    the file's place. The files of the working directory are restored and saved as `serve_kept`
    does. Raises OSError or DetcloudError if the location file or a report cannot be written.
    """
    if arguments if arguments is not None else sys.argv[1:]:
        print("usage: python -m detcloud.launch.shell", file=sys.stderr)
        return 2
    return serve_kept(_serve)


def _serve() -> int:
    """Listen, report the place, and accept connections. Never return.

    Raises OSError or DetcloudError if the location file or the report cannot be written.
    """
    token = secrets.token_urlsafe(32)
    with socket.create_server((ADDRESS, 0)) as listener:
        port: int = listener.getsockname()[1]
        write_location(KIND, port=port, token=token)
        report_location(KIND, port)
        print(f"detcloud: shells start in {Path.cwd()}", flush=True)
        accept_connections(listener, token)
    return 0


def accept_connections(listener: socket.socket, token: str) -> None:
    """Serve each connection that has sent the token in a forked process. Never return.

    Connections without the token wait in the lobby and do not count as sessions. At most
    SESSIONS_MAX sessions run; connections above the maximum get a notice and wait. Raises OSError
    if no process can be created.
    """
    lobby = Lobby(listener, token)
    waiting: deque[GreetedConnection] = deque()
    sessions = 0
    while True:
        for greeted in lobby.receive(REAPING_SECONDS if waiting else None):
            if sessions + len(waiting) >= SESSIONS_MAX:
                _report_waiting(greeted.connection)
            waiting.append(greeted)
        sessions -= _reap_sessions(sessions)
        while waiting and sessions < SESSIONS_MAX:
            _fork_session(waiting.popleft(), lobby, waiting)
            sessions += 1


def _report_waiting(connection: socket.socket) -> None:
    """Send the client a notice that the connection waits. Ignore a client that has left."""
    text = f"detcloud: {SESSIONS_MAX} connections are open; this one waits for the end of another\n"
    with contextlib.suppress(OSError):
        connection.sendall(pack_frame(ERRORS, text.encode()))


def _reap_sessions(sessions: int) -> int:
    """Return the number of session processes that have ended since the last call.

    `sessions` is the number of processes that were running then.
    """
    ended = 0
    while ended < sessions and os.waitpid(-1, os.WNOHANG)[0] != 0:
        ended += 1
    return ended


def _fork_session(
    greeted: GreetedConnection, lobby: Lobby, waiting: Iterable[GreetedConnection]
) -> None:
    """Fork a process that serves the connection, and close the connection in this process.

    The new process closes the connections of `lobby` and `waiting`, and ends with this process.
    Raises OSError if the system cannot fork.
    """
    server = os.getpid()
    with greeted.connection:
        if os.fork() == 0:
            end_with_parent(server)
            lobby.close()
            for other in waiting:
                other.connection.close()
            os._exit(serve_quietly(greeted))


def serve_quietly(greeted: GreetedConnection) -> int:
    """Serve a connection and return 0. Ignore protocol errors and clients that leave."""
    with contextlib.suppress(OSError, ValueError):
        serve_connection(greeted)
    return 0


def serve_connection(greeted: GreetedConnection) -> None:
    """Run a program for the client; send the output and the exit code.

    The program runs in a new terminal, or with pipes if the greeting names no terminal. An empty
    program means bash or sh. If the program cannot be started, send the reason and exit code 127.
    Return when the client has closed the connection.

    Raises ValueError for an invalid frame, and OSError if the client leaves. In both cases a
    running program gets SIGHUP. Also raises OSError if the client neither leaves nor sends input
    for PATIENCE_SECONDS after the exit code.
    """
    connection, greeting = greeted.connection, greeted.greeting
    words = list(greeting.program) or [shutil.which("bash") or "/bin/sh"]
    try:
        program = _start_in_terminal(words, greeting) if greeting.terminal else _start_piped(words)
    except (OSError, ValueError) as error:
        code = _report_failed_start(connection, words, error)
    else:
        try:
            _pass_on(connection, program, greeted.received)
        except BaseException:
            program.hang_up()
            raise
        program.close()
        code = program.exit_code()
    connection.sendall(pack_frame(EXIT, pack_exit_code(code)))
    _drain(connection)


def _drain(connection: socket.socket) -> None:
    """End the output, then read and discard input until the client leaves.

    Raises OSError after PATIENCE_SECONDS without input, or if the client resets the connection.
    Closing a connection with unread input would reset the connection and lose the exit code.
    """
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(PATIENCE_SECONDS)
    while connection.recv(READ_BYTES):
        pass


@dataclass
class Program:
    """A program that runs for a connection, and the descriptors of input and output."""

    process: int
    """The process id of the program, which is also the id of its session."""
    input: int | None
    """The descriptor of the input; None after the input has ended."""
    outputs: dict[int, bytes]
    """The kind of frames for each output descriptor that is still open."""
    has_terminal: bool
    """Whether input and output are a terminal, otherwise pipes."""
    _status: int | None = None

    def close_input(self) -> None:
        """Close the input of a program without a terminal. Do nothing with a terminal."""
        if self.input is not None and not self.has_terminal:
            os.close(self.input)
            self.input = None

    def hang_up(self) -> None:
        """Close all descriptors, and send SIGHUP to the program's process group.

        Do not wait for the end of the program. The closed terminal makes the kernel send SIGHUP
        only to programs that use the terminal. Programs with redirected output or without a
        terminal need this SIGHUP. A group that has ended is no error.
        """
        self.close()
        with contextlib.suppress(OSError):
            os.killpg(self.process, signal.SIGHUP)

    def close(self) -> None:
        """Close the descriptors that are still open."""
        for descriptor in {*self.outputs, self.input} - {None}:
            assert descriptor is not None
            os.close(descriptor)
        self.outputs, self.input = {}, None

    def has_ended(self) -> bool:
        """Return whether the process has ended. Programs that it started may still run."""
        if self._status is None:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            self._status = status if ended else None
        return self._status is not None

    def exit_code(self) -> int:
        """Return the exit code of the ended process, 128 + n after signal n.

        Call this only after `has_ended` has returned True.
        """
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code


def _start_in_terminal(words: list[str], greeting: Greeting) -> Program:
    """Start a program in a new terminal of the greeting's size, and return the program.

    If the program cannot be started, the terminal shows an error and the program's exit code is
    127. Raises OSError without a free terminal.
    """
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
    """Restore the default action of every ignored signal.

    An agent that a script starts in the background ignores Ctrl-C, and Python ignores closed pipes.
    Programs would inherit both.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _start_piped(words: list[str]) -> Program:
    """Start a program that reads and writes pipes. Raises OSError or ValueError if that fails."""
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
    # Without this, Popen would also wait for the process, which `Program` does by the id.
    started.returncode = 0
    return Program(started.pid, source, {output: DATA, errors: ERRORS}, has_terminal=False)


def _report_failed_start(connection: socket.socket, words: list[str], error: Exception) -> int:
    """Send the client the reason why the program cannot be started, and return 127.

    Raises OSError if the client has left.
    """
    text = f"{_failed_start(words, error)}\n"
    connection.sendall(pack_frame(ERRORS, text.encode()))
    return NOT_STARTED


def _failed_start(words: list[str], error: Exception) -> str:
    """Return the message that the program cannot be started."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"detcloud: {words[0]!r:.200} cannot be started: {reason}"


def _resize(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal. Do nothing for 0 rows or columns."""
    if rows and columns:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _pass_on(connection: socket.socket, program: Program, received: bytes) -> None:
    """Transfer input and output until the program has closed the output and ended.

    A program that has redirected its output still reads input, and ends with its terminal. Input
    that the program does not read yet waits here, up to WAITING_BYTES_MAX, so that output is
    transferred in the meantime. The client can end the input of a program without a terminal, and
    can resize a terminal. `received` is input that has arrived already. Raises OSError if the
    client leaves, and ValueError for an invalid frame.
    """
    reader, source, waiting, is_over = FrameReader(), connection.fileno(), b"", False
    mark = UseMark(os.environ.get("HOME"))
    while program.outputs or not program.has_ended():
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
        seconds = None if program.outputs else REAPING_SECONDS
        readable, writable, _ = select.select(sources, sinks, [], seconds)
        if readable:
            mark.touch()
        if writable:
            waiting = _write_input(program, waiting)
        for descriptor in set(readable) & set(program.outputs):
            _send_output(connection, program, descriptor)
        if source in readable:
            received = connection.recv(READ_BYTES)
            if not received:
                raise OSError("the other side has left")


def _write_input(program: Program, waiting: bytes) -> bytes:
    """Write as much input as the program accepts now, and return the rest.

    If the program accepts no more input, discard the input and return b"". Then also close the
    input of a program without a terminal.
    """
    assert program.input is not None
    try:
        return waiting[os.write(program.input, waiting[:READ_BYTES]) :]
    except BlockingIOError:
        return waiting
    except OSError:
        program.close_input()
        return b""


def _send_output(connection: socket.socket, program: Program, descriptor: int) -> None:
    """Send available output of the program. At the end, remove the descriptor from the outputs.

    Then also close the descriptor, unless it is a terminal, which is the input too. Linux reports
    the end of a terminal's output as an error. Raises OSError if the client has left.
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
