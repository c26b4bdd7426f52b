"""The program of shells: a terminal for each connection with the token, until one side ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from detcloud.launch import shell
from detcloud.launch.greetings import GreetedConnection, GreetingReader, Lobby, LobbyLimits
from detcloud.launch.location import location_path, write_location
from detcloud.shared.launcher_names import unknown_launcher
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
from tests.forked_process import await_exit_code, fork
from tests.patience import ANSWER_SECONDS_MAX, wait_until

TOKEN = "secret"


class Terminal:
    """Client of a shell: sends frames, and keeps the output."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self.shown = b""
        self.errors = b""
        self.exit_code: int | None = None

    def greet(self, *program: str, token: str = TOKEN, terminal: str = "dumb") -> None:
        self._connection.sendall(Greeting(token, terminal, 24, 80, program).encode())

    def send_bytes(self, sent: bytes) -> None:
        self._connection.sendall(sent)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._connection.sendall(pack_frame(kind, payload))

    def send_all(self, lines: bytes) -> None:
        for place in range(0, len(lines), 32_768):
            self.send(DATA, lines[place : place + 32_768])

    def read_until(self, text: bytes) -> None:
        while text not in self.shown and self._receive():
            pass
        assert text in self.shown, self.shown

    def read_errors_until(self, text: bytes) -> None:
        while text not in self.errors and self._receive():
            pass
        assert text in self.errors, self.errors

    def read_to_the_end(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bool:
        received = self._connection.recv(65_536)
        for kind, payload in self._reader.feed(received):
            if kind == EXIT:
                self.exit_code = unpack_exit_code(payload)
            elif kind == ERRORS:
                self.errors += payload
            else:
                self.shown += payload
        return bool(received)


@contextmanager
def open_connection() -> Iterator[Terminal]:
    """A connection that a thread serves."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        reader, greeted = GreetingReader(TOKEN), None
        with theirs, contextlib.suppress(ValueError, ConnectionError):
            while greeted is None and (received := theirs.recv(65_536)):
                greeted = reader.feed(received)
            if greeted is not None:
                shell.serve_quietly(GreetedConnection(theirs, *greeted))

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        yield Terminal(ours)
    thread.join()


def test_shell_program_gets_the_window_size_and_returns_its_exit_code() -> None:
    with open_connection() as terminal:
        terminal.greet("sh", "-c", "stty size; read line; stty size; exit 3")
        terminal.read_until(b"24 80")
        terminal.send(SIZE, pack_size(50, 132))
        terminal.send(DATA, b"\n")
        terminal.read_to_the_end()
    assert b"50 132" in terminal.shown
    assert terminal.exit_code == 3


def test_shell_starts_without_a_program() -> None:
    with open_connection() as terminal:
        terminal.greet()
        terminal.send(DATA, b"echo $((6 * 7)); tty; exit 4\n")
        terminal.read_to_the_end()
    assert b"42" in terminal.shown
    assert b"/dev/" in terminal.shown
    assert terminal.exit_code == 4


def test_without_a_terminal_stdout_and_stderr_are_separate() -> None:
    with open_connection() as terminal:
        terminal.greet(terminal="")
        terminal.send(DATA, b"echo $((6 * 7)); tty; echo no >&2")
        terminal.send(END)
        terminal.read_to_the_end()
    assert (terminal.shown, terminal.errors) == (b"42\nnot a tty\n", b"no\n")
    assert terminal.exit_code == 0


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_large_input_and_output_do_not_deadlock(kind: str) -> None:
    # More than a terminal and a connection hold: who only wrote before reading would wait for ever.
    lines = b"".join(b"%099d\n" % number for number in range(20_000))
    with open_connection() as terminal:
        terminal.greet("sh", "-c", "stty -echo; echo ready; head -n 20000", terminal=kind)
        terminal.read_until(b"ready")
        sender = threading.Thread(target=terminal.send_all, args=(lines,))
        sender.start()
        terminal.read_to_the_end()
        sender.join()
    shown = terminal.shown.replace(b"\r\n", b"\n").removeprefix(b"ready\n")
    assert shown == lines
    assert terminal.exit_code == 0


def test_unread_input_does_not_block_the_session() -> None:
    with open_connection() as terminal:
        terminal.greet("true", terminal="")
        terminal.send_all(b"x" * 3_000_000)
        terminal.read_to_the_end()
    assert terminal.exit_code == 0


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\n", b"{}\n", b"[" * 60_000 + b"\n"])
def test_malformed_greeting_closes_the_connection(greeting: bytes) -> None:
    with open_connection() as terminal:
        with contextlib.suppress(ConnectionError):
            terminal.send_bytes(greeting)
            terminal.read_to_the_end()
        assert (terminal.shown, terminal.exit_code) == (b"", None)


def test_a_wrong_token_starts_no_program(tmp_path: Path) -> None:
    with open_connection() as terminal:
        terminal.greet("touch", str(tmp_path / "touched"), token="guess")
        terminal.read_to_the_end()
    assert (terminal.shown, terminal.exit_code) == (b"", None)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_disconnect_sends_sighup_to_the_program(tmp_path: Path, kind: str) -> None:
    hung_up = tmp_path / "hung_up"
    with open_connection() as terminal:
        # After the disconnect nobody reads the shell's message about the killed `sleep`.
        loop = "while :; do sleep 0.05; done"
        script = f"exec 2>/dev/null; trap 'touch {hung_up}; exit' HUP; echo ready; {loop}"
        terminal.greet("sh", "-c", script, terminal=kind)
        terminal.read_until(b"ready")
    wait_until(hung_up.exists)


REDIRECTED = "exec >/dev/null 2>&1; "
UNREAD = "exec </dev/null >/dev/null 2>&1; "


@pytest.mark.parametrize("redirection", [REDIRECTED, UNREAD])
@pytest.mark.parametrize("kind", ["", "dumb"])
def test_disconnect_sends_sighup_to_a_program_with_redirected_output(
    tmp_path: Path, kind: str, redirection: str
) -> None:
    hung_up, ready = tmp_path / "hung_up", tmp_path / "ready"
    with open_connection() as terminal:
        loop = f"touch {ready}; while :; do sleep 0.05; done"
        script = f"trap 'touch {hung_up}; exit' HUP; {redirection}{loop}"
        terminal.greet("sh", "-c", script, terminal=kind)
        wait_until(ready.exists)
    wait_until(hung_up.exists)


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_a_program_with_redirected_output_runs_to_the_end(tmp_path: Path, kind: str) -> None:
    with open_connection() as terminal:
        script = f"exec >{tmp_path / 'out'} 2>&1; read line; echo got $line; exit 5"
        terminal.greet("sh", "-c", script, terminal=kind)
        wait_until((tmp_path / "out").exists)
        terminal.send(DATA, b"hello\n")
        terminal.read_to_the_end()
    assert (tmp_path / "out").read_text() == "got hello\n"
    assert terminal.exit_code == 5


@pytest.fixture
def port() -> Iterator[int]:
    """Run the program of shells in a child process, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = fork(partial(shell.accept_connections, listener, TOKEN))
        yield listener.getsockname()[1]
    os.kill(process, signal.SIGKILL)
    await_exit_code(process)


@contextmanager
def connect(port: int) -> Iterator[Terminal]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as connection:
        yield Terminal(connection)


def test_unauthenticated_connections_do_not_block_the_owner(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * shell.SESSIONS_MAX):
            stack.enter_context(connect(port)).send_bytes(b"{")
        with connect(port) as owner:
            owner.greet("echo", "hi", terminal="")
            owner.read_to_the_end()
        assert (owner.shown, owner.exit_code) == (b"hi\n", 0)


def test_a_slow_greeting_times_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), ANSWER_SECONDS_MAX) as dripping,
    ):
        lobby = Lobby(listener, TOKEN, LobbyLimits(greeting_seconds_max=0.3))

        def is_closed() -> bool:
            with contextlib.suppress(ConnectionError):
                # Each byte would restart a limit for a single read.
                dripping.sendall(b" ")
                assert lobby.receive(0.02) == []
                dripping.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    return dripping.recv(1) == b""
                return False
            return True

        wait_until(is_closed)
        lobby.close()


def test_a_further_unauthenticated_connection_closes_the_oldest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lobby = Lobby(listener, TOKEN, LobbyLimits(strangers_max=2))
        opened = []
        for _ in range(3):
            opened.append(socket.create_connection(listener.getsockname(), ANSWER_SECONDS_MAX))
            lobby.receive(ANSWER_SECONDS_MAX)
        assert opened[0].recv(1) == b""
        opened[2].sendall(Greeting(TOKEN, "", 0, 0).encode() + b"more")
        [greeted] = lobby.receive(ANSWER_SECONDS_MAX)
        assert (greeted.greeting.token, greeted.received) == (TOKEN, b"more")
        for connection in (*opened, greeted.connection):
            connection.close()
        lobby.close()


def test_a_surplus_session_waits_with_a_message(port: int) -> None:
    with contextlib.ExitStack() as stack:
        others = []
        for _ in range(shell.SESSIONS_MAX):
            other = stack.enter_context(connect(port))
            other.greet("sh", "-c", "echo ready; read line", terminal="")
            other.read_until(b"ready")
            others.append(other)
        last = stack.enter_context(connect(port))
        last.greet("echo", "hi", terminal="")
        last.read_errors_until(b"waits for the end of another")
        others[0].send(END)
        last.read_to_the_end()
        assert last.shown == b"hi\n"


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_a_missing_program_is_named_with_exit_code_127(kind: str) -> None:
    with open_connection() as terminal:
        terminal.greet("no-such-program", terminal=kind)
        terminal.read_to_the_end()
    expected = b"detcloud: 'no-such-program' cannot be started: No such file or directory"
    assert expected in terminal.shown + terminal.errors
    assert terminal.exit_code == 127


def test_location_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_location("shell", port=1, token="t")
    path = location_path("shell")
    assert path == tmp_path / "shell.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == '{"port": 1, "token": "t"}'


def test_shell_is_a_known_launcher() -> None:
    assert unknown_launcher(["python", "-m", "detcloud.launch.shell"]) is None


def test_shell_server_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["--port", "80"]) == 2
    assert "usage: python -m detcloud.launch.shell" in capsys.readouterr().err
